"""The residual connection around a sub-layer, with the norm before it, after the sum, or nowhere."""

from collections.abc import Callable

from torch import nn

from longspan.errors import UnknownName, suggest
from longspan.nn.dropout import Dropout
from longspan.nn.norm import build_norm
from longspan.shapes import Hidden

PLACES = ("pre", "post", "none")


class Residual(nn.Module):
    """`pre`: x + drop(f(norm(x))). `post`: norm(x + drop(f(x))), as in Vaswani et al. 2017. `none`: x + drop(f(x)).

    A stack of `pre` blocks needs one more norm at its end; that belongs to the stack, as only it knows where it ends.
    """

    def __init__(
        self, width: int, *, norm: str = "layer", place: str = "pre", dropout: float = 0.0, eps: float = 1e-5
    ) -> None:
        super().__init__()
        if place not in PLACES:
            raise UnknownName(f"no place for the norm is called {place!r}; {suggest(place, PLACES)}")
        self.place = place
        self.norm = build_norm("none" if place == "none" else norm, width, eps)
        self.dropout = Dropout(dropout)

    def forward(self, x: Hidden, function: Callable[[Hidden], Hidden]) -> Hidden:
        if self.place == "pre":
            return x + self._drop(function(self.norm(x)))
        return self.norm(x + self._drop(function(x)))

    def _drop(self, x: Hidden) -> Hidden:
        return self.dropout(x) if self.training else x  # a call less, which decoding feels

    def extra_repr(self) -> str:
        return f"place={self.place!r}"


__all__ = ["PLACES", "Residual"]
