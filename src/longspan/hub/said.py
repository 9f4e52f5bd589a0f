"""Whether a configuration of another's says all that matters of a model: a file that cannot must not be written."""

from collections.abc import Callable, Mapping
from typing import Any

from longspan import config
from longspan.errors import Unsupported
from longspan.hub.family import Family

# What a model was trained with, or how it goes about its work, and not what it computes.
FREE = {
    "dropout",
    "embedding_dropout",
    "attention_dropout",
    "hidden_dropout",
    "feedforward_chunk",
    "init",
    "init_std",
    "residual_init",
    "zero_output",
    "padding",
    "tasks",
}
# What options mean that are left out.
MEANT: Mapping[str, Callable[[Any], Any]] = {
    "head_dim": lambda options: options.width // options.heads,
    "key_dim": lambda options: _value(options, "head_dim"),
    "kv_heads": lambda options: options.heads,
    "query_bias": lambda options: options.bias,
    "output_bias": lambda options: options.bias,
    "embedding_width": lambda options: options.width,
}


def check_said(family: Family, options: Any, written: Mapping[str, Any]) -> None:
    """Reads the configuration back and refuses options that come out otherwise, by their names."""
    again = config.make(type(options), family.options(written, options.tasks or ()), family.name)
    for name in (item["name"] for item in config.describe(type(options))):
        here, there = _value(options, name), _value(again, name)
        if name not in FREE and here != there and not (name == "tied" and options.tasks):
            raise Unsupported(f"a {family.name} has {name} = {there!r}, and this model {here!r}: it cannot be written")


def _value(options: Any, name: str) -> Any:
    found = getattr(options, name)
    return MEANT[name](options) if found is None and name in MEANT else found


__all__ = ["check_said"]
