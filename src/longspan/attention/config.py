"""A mechanism by name with its options: what a model's configuration says of one attention."""

from collections.abc import Mapping
from typing import Any

from longspan import config
from longspan.attention.base import Attention
from longspan.attention.registry import build, find
from longspan.errors import InvalidOption


class AttentionConfig:
    """`Setting("window", window=256)`; in a configuration file `"window"` or `{"name": "window", "window": 256}`.

    `dropout` on its weights may be another than the model's. The options are checked here, so that a wrong one is
    refused before anything is built.
    """

    def __init__(self, name: str, /, *, dropout: float | None = None, **options: Any) -> None:
        self.name, self.dropout, self.options = name, dropout, options
        self.made: Any = config.make(find(name).Options, options, name)  # with what was not said

    @classmethod
    def read(cls, value: Any) -> "AttentionConfig":
        """From a name, or from a table with one."""
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            return cls(value["name"], **{key: part for key, part in value.items() if key != "name"})
        raise InvalidOption(f"an attention is a name or a table with a name and its options, not {value!r}")

    def plain(self) -> Any:
        """What `read` understands."""
        own = {} if self.dropout is None else {"dropout": self.dropout}
        return {"name": self.name, **own, **{key: config.plain(part) for key, part in self.options.items()}}

    def build(self, *, heads: int, head_dim: int, causal: bool, max_length: int | None, dropout: float) -> Attention:
        """The mechanism; attention dropout is left out where there are no weights to drop."""
        dropout = dropout if self.dropout is None else self.dropout
        dropout = dropout if find(self.name).supports.dropout else 0.0
        return build(
            self.name,
            heads=heads,
            head_dim=head_dim,
            causal=causal,
            max_length=max_length,
            dropout=dropout,
            **self.options,
        )

    def __eq__(self, other: object) -> bool:
        """Whether they say the same, be it by naming a default."""
        if not isinstance(other, AttentionConfig):
            return NotImplemented
        return (self.name, self.dropout, self.made) == (other.name, other.dropout, other.made)

    __hash__ = None  # type: ignore[assignment]  # options may hold lists

    def __repr__(self) -> str:
        inside = "".join(f", {key}={value!r}" for key, value in self.plain().items() if key != "name")
        return f"Setting({self.name!r}{inside})"


__all__ = ["AttentionConfig"]
