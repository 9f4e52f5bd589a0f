"""The attention of a layer in a model's configuration: a mechanism by name, with its options."""

from collections.abc import Mapping
from typing import Any

from longspan import config
from longspan.attention.base import Attention
from longspan.attention.registry import build, find
from longspan.errors import InvalidOption


class AttentionConfig:
    """`AttentionConfig("window", window=256)`; in a file `"window"` or `{"name": "window", "window": 256}`.

    `dropout` on the attention weights overrides the model's. Options are checked at once, before anything is built.
    """

    def __init__(self, name: str, /, *, dropout: float | None = None, **options: Any) -> None:
        kind = find(name).Options
        self.name, self.dropout, self.options = name, dropout, config.current_names(kind, options, name)
        self.all_options: Any = config.make(kind, options, name)  # with the defaults of what was left out

    @classmethod
    def read(cls, value: Any) -> "AttentionConfig":
        """From a name, or from a table with a name and options."""
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            return cls(value["name"], **{key: item for key, item in value.items() if key != "name"})
        raise InvalidOption(f"an attention is a name or a table with a name and its options, not {value!r}")

    def plain(self) -> Any:
        """The table for a configuration file, which `read` reads back."""
        dropout = {} if self.dropout is None else {"dropout": self.dropout}
        options = {key: config.plain(value) for key, value in self.options.items()}
        return {"name": self.name, **dropout, **options}

    def build(
        self,
        *,
        heads: int,
        head_dim: int,
        causal: bool,
        max_length: int | None,
        dropout: float,
        value_dim: int | None = None,
        key_heads: int | None = None,
    ) -> Attention:
        """The mechanism; without attention dropout if it has no attention weights."""
        dropout = dropout if self.dropout is None else self.dropout
        dropout = dropout if find(self.name).supports.dropout else 0.0
        return build(
            self.name,
            heads=heads,
            head_dim=head_dim,
            value_dim=value_dim,
            key_heads=key_heads,
            causal=causal,
            max_length=max_length,
            dropout=dropout,
            **self.options,
        )

    def __eq__(self, other: object) -> bool:
        """Equal settings; it does not matter whether a default is spelled out."""
        if not isinstance(other, AttentionConfig):
            return NotImplemented
        return (self.name, self.dropout, self.all_options) == (other.name, other.dropout, other.all_options)

    __hash__ = None  # type: ignore[assignment]  # options may hold lists

    def __repr__(self) -> str:
        inside = "".join(f", {key}={value!r}" for key, value in self.plain().items() if key != "name")
        return f"AttentionConfig({self.name!r}{inside})"


__all__ = ["AttentionConfig"]
