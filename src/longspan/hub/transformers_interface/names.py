"""The name of a mechanism with its options, as transformers passes it: "longspan:window?window=256".

Equal settings have one name: options are sorted and written with the names that they have today. Besides the
mechanism's own options there are four of this room: `global_first`, `layers`, `max_length` and `packing`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from longspan import config
from longspan.attention.base import Attention
from longspan.attention.config import AttentionConfig
from longspan.attention.registry import find
from longspan.errors import InvalidOption

PREFIX = "longspan:"
FORBIDDEN = ("flash", "sdpa", "flex_attention", "/", "paged|")  # each makes transformers look for a kernel of its own
OWN_OPTIONS = ("global_first", "layers", "max_length", "packing")


@dataclass(frozen=True)
class Implementation:
    """A mechanism and its options, checked; `layers` None: all of them."""

    mechanism: str
    options: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[int, ...] | None = None
    max_length: int | None = None
    packing: bool = True  # whether texts whose positions start again are read separately
    global_first: int | None = None  # how many tokens at the front are global (Longformer)

    def __post_init__(self) -> None:
        checked = AttentionConfig(self.mechanism, **self.options)  # refuses unknown names and options
        if checked.dropout is not None:
            raise InvalidOption("the dropout on attention weights is that of their configuration; leave out dropout")
        object.__setattr__(self, "options", dict(sorted(checked.options.items())))
        if self.layers is not None and (not self.layers or any(not _counts(layer, 0) for layer in self.layers)):
            raise InvalidOption(f"layers are numbers from 0 on, not {self.layers!r}")
        if self.max_length is not None and not _counts(self.max_length, 1):
            raise InvalidOption(f"max_length must be an int of at least 1, not {self.max_length!r}")
        if self.global_first is not None:
            if not _counts(self.global_first, 1):
                raise InvalidOption(f"global_first must be an int of at least 1, not {self.global_first!r}")
            if not any(stream.name == "global_mask" for stream in self.kind.streams):
                raise InvalidOption(f"{self.mechanism} chooses no global tokens; global_first is for longformer")
        if not isinstance(self.packing, bool):
            raise InvalidOption(f"packing must be true or false, not {self.packing!r}")
        for word in FORBIDDEN:
            if word in self.name:
                raise InvalidOption(f"transformers takes a name with {word!r} for a kernel of its own: {self.name}")

    @classmethod
    def of(cls, mechanism: str, options: Mapping[str, Any]) -> "Implementation":
        """From keywords, those of this room included."""
        own = {key: options[key] for key in OWN_OPTIONS if key in options}
        if "layers" in own:
            layers = own["layers"]
            own["layers"] = (layers,) if isinstance(layers, int) else layers if layers is None else tuple(layers)
        return cls(mechanism, {key: value for key, value in options.items() if key not in OWN_OPTIONS}, **own)

    @classmethod
    def read(cls, name: str) -> "Implementation":
        """From a name as `name` writes it, with or without the prefix."""
        mechanism, _, query = name.removeprefix(PREFIX).partition("?")
        options: dict[str, Any] = {}
        for pair in query.split("&") if query else ():
            key, equals, text = pair.partition("=")
            if not equals or not key or key in options:
                raise InvalidOption(
                    f"{name}: options are written key=value and joined by &, each once; {pair!r} is not"
                )
            options[key] = _value(text)
        return cls.of(mechanism, options)

    @cached_property
    def name(self) -> str:
        """What `attn_implementation=` takes."""
        own: dict[str, Any] = {} if self.global_first is None else {"global_first": self.global_first}
        if self.layers is not None:
            own["layers"] = list(self.layers)
        if self.max_length is not None:
            own["max_length"] = self.max_length
        if not self.packing:
            own["packing"] = False
        written = {**{key: config.plain(value) for key, value in self.options.items()}, **own}
        query = "&".join(f"{key}={_text(value)}" for key, value in written.items())
        return f"{PREFIX}{self.mechanism}{'?' if query else ''}{query}"

    @property
    def kind(self) -> type[Attention]:
        return find(self.mechanism)

    def covers(self, layer: int) -> bool:
        return self.layers is None or layer in self.layers

    def __hash__(self) -> int:
        return hash(self.name)


def _counts(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(_text(item) for item in value) + ("," if len(value) == 1 else "")
    return value if isinstance(value, str) else json.dumps(value)


def _value(text: str) -> Any:
    if "," in text:
        return tuple(_value(item) for item in text.rstrip(",").split(","))
    try:
        return json.loads(text)
    except ValueError:
        return text


__all__ = ["PREFIX", "Implementation"]
