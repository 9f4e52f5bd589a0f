"""The residual connection around a sub-layer, with norms before it, after it, after the sum, or left out."""

from collections.abc import Callable

import torch
from torch import nn

from longspan.errors import UnknownName, suggest
from longspan.nn.dropout import Dropout
from longspan.nn.norm import build_norm
from longspan.shapes import Hidden

NORM_POSITIONS = ("pre", "post", "output", "both", "none")


class Residual(nn.Module):
    """`pre`: x + drop(f(norm(x))). `post`: norm(x + drop(f(x))), as in Vaswani et al. 2017. `none`: x + drop(f(x)).

    `output`: x + drop(norm(f(x))), as in OLMo 2. `both`: x + drop(norm_output(f(norm(x)))), as in Gemma 2.

    `drop_path` is stochastic depth (Huang et al. 2016): in training, the share of examples that skip the sub-layer; the
    others are scaled up.

    A stack of `pre`, `output` or `both` blocks needs one more norm at its end; the stack adds it.
    """

    def __init__(
        self,
        width: int,
        *,
        norm: str = "layer",
        norm_position: str = "pre",
        dropout: float = 0.0,
        eps: float = 1e-5,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if norm_position not in NORM_POSITIONS:
            raise UnknownName(f"no norm position is called {norm_position!r}; {suggest(norm_position, NORM_POSITIONS)}")
        self.norm_position = norm_position
        self.norm = build_norm("none" if norm_position == "none" else norm, width, eps)
        self.norm_output = build_norm(norm, width, eps) if norm_position == "both" else None
        self.dropout, self.drop_path = Dropout(dropout), drop_path

    def forward(self, x: Hidden, function: Callable[[Hidden], Hidden]) -> Hidden:
        if self.norm_position == "pre":
            return x + self.branch(x, function)
        if self.norm_output is not None:
            return x + self._drop(self.norm_output(function(self.norm(x))))
        if self.norm_position == "output":
            return x + self._drop(self.norm(function(x)))
        out: Hidden = self.norm(x + self._drop(function(x)))
        return out

    def branch(self, x: Hidden, function: Callable[[Hidden], Hidden]) -> Hidden:
        """What `pre` adds to x."""
        return self._drop(function(self.norm(x)))

    def _drop(self, x: Hidden) -> Hidden:
        if not self.training:
            return x  # saves a call per sub-layer, which is measurable when decoding
        out: Hidden = self.dropout(x)
        if self.drop_path:
            kept = torch.rand(len(x), *(1,) * (x.ndim - 1), device=x.device) >= self.drop_path
            out = out * kept / (1 - self.drop_path)
        return out

    def extra_repr(self) -> str:
        return f"norm_position={self.norm_position!r}"


__all__ = ["NORM_POSITIONS", "Residual"]
