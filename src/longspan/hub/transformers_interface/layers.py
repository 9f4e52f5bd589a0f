"""What a layer of theirs is: its number, whether it reads another sequence, its heads and their width."""

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

from torch import nn

HEADS = ("num_heads", "num_attention_heads", "n_heads")
WIDTHS = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
NUMBER = "longspan_number"  # of layers without a `layer_idx`


@cache
def uses_interface(kind: type[nn.Module]) -> bool:
    """Whether a module's forward pass calls a registered attention function."""
    try:
        return "ALL_ATTENTION_FUNCTIONS.get_interface(" in inspect.getsource(kind.forward)
    except (OSError, TypeError):
        return False


def attention_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a model that call the interface, with their names."""
    return ((name, module) for name, module in model.named_modules() if uses_interface(type(module)))  # type: ignore[arg-type]


def number_layers(model: nn.Module) -> None:
    """Numbers the layers that have no number of their own (ViT, DistilBERT), once."""
    if getattr(model, "longspan_numbered", False):
        return
    model.longspan_numbered = True  # type: ignore[assignment]
    plain = (module for _, module in attention_layers(model) if getattr(module, "layer_idx", None) is None)
    for number, module in enumerate(plain):
        if not hasattr(module, NUMBER):
            setattr(module, NUMBER, number)


def layer_number(module: nn.Module) -> int:
    number = getattr(module, "layer_idx", None)
    return int(getattr(module, NUMBER, 0) if number is None else number)


def is_causal(module: nn.Module, given: dict[str, Any]) -> bool:
    """Whether a layer that got no mask is causal."""
    told = given.get("is_causal")
    return bool(getattr(module, "is_causal", False) if told is None else told)


def is_cross(module: nn.Module) -> bool:
    """Whether a layer reads another sequence; lengths cannot tell, because they may be equal."""
    if hasattr(module, "is_cross_attention"):
        return bool(module.is_cross_attention)
    if "CrossAttention" in type(module).__name__:
        return True
    return bool(getattr(module, "is_decoder", False)) and not getattr(module, "is_causal", False)


def sizes(module: nn.Module) -> tuple[int, int]:
    """Query heads and their width, before the layer has run."""
    config: Any = getattr(module, "config", None)
    heads = next((value for name in HEADS if isinstance(value := getattr(module, name, None), int)), None)
    heads = config.num_attention_heads if heads is None else heads
    width = next((value for name in WIDTHS if isinstance(value := getattr(module, name, None), int)), None)
    return heads, config.hidden_size // heads if width is None else width


def longest(module: nn.Module) -> int | None:
    """The longest text of the model, if its configuration says it."""
    config: Any = getattr(module, "config", None)
    length = getattr(config, "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None


__all__ = [
    "attention_layers",
    "is_causal",
    "is_cross",
    "layer_number",
    "longest",
    "number_layers",
    "sizes",
    "uses_interface",
]
