"""A mechanism by name with its options: what a model's configuration says of one attention."""

from collections.abc import Mapping
from typing import Any

from longspan import config
from longspan.attention.base import Attention
from longspan.attention.registry import build, find
from longspan.errors import InvalidOption


class Setting:
    """`Setting("window", window=256)`; in a configuration file `"window"` or `{"name": "window", "window": 256}`.

    The options are checked here, so that a wrong one is refused before anything is built.
    """

    def __init__(self, name: str, /, **options: Any) -> None:
        self.name, self.options = name, options
        self._options()

    @classmethod
    def read(cls, value: Any) -> "Setting":
        """From a name, or from a table with one."""
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            return cls(value["name"], **{key: part for key, part in value.items() if key != "name"})
        raise InvalidOption(f"an attention is a name or a table with a name and its options, not {value!r}")

    def plain(self) -> Any:
        """What `read` understands."""
        return {"name": self.name, **{key: config.plain(part) for key, part in self.options.items()}}

    def build(self, *, heads: int, head_dim: int, causal: bool, max_length: int | None, dropout: float) -> Attention:
        """The mechanism; attention dropout is left out where there are no weights to drop."""
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

    def same(self, other: "Setting") -> bool:
        """Whether the two build the same mechanism, though one may leave options to their defaults."""
        return self.name == other.name and self._options() == other._options()

    def _options(self) -> config.Options:
        return config.make(find(self.name).Options, self.options, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self.plain() == other.plain()

    __hash__ = None  # type: ignore[assignment]  # options may hold lists

    def __repr__(self) -> str:
        inside = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"Setting({self.name!r}{inside})"


__all__ = ["Setting"]
