"""A few keys at given positions, read by every query that has them more than a window behind itself."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longspan.attention.kernels import flash
from longspan.attention.layouts.base import Layout, add, blocked, blocked_where, products


@dataclass(frozen=True)
class FirstKeys(Layout):
    """Query i, at position i + start, reads key j if it is at a position before i + start - window.

    A window reads the nearer ones, so that the two together read each key once. `at` (batch or 1, keys) has the
    positions, which padding may make different in each row.
    """

    at: Tensor
    window: int
    start: int = 0
    step = 1

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        return products(q, k, scale) + self._mask(q, keep)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple[Layout, slice]:
        return replace(self, start=self.start + begin), slice(0, keys)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        return flash.forward(q, k, v, scale, mask=self._mask(q, keep))

    def backward(
        self,
        g: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        bias: Tensor | None,
        out: Tensor,
        lse: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return flash.backward(g, q, k, v, out, lse, scale, mask=self._mask(q, keep))

    def readable(self, query: int) -> Tensor:
        """Which keys a query reads: (batch or 1, keys)."""
        return self.at < self.start + query - self.window

    def width(self, keys: int) -> int:
        return keys

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * queries * keys

    def _mask(self, q: Tensor, keep: Tensor | None) -> Tensor:
        """The mask to add to the scores: (batch or 1, 1, queries, keys)."""
        position = torch.arange(q.shape[2], device=q.device)[:, None] + (self.start - self.window)
        return add(blocked_where(self.at[:, None, None, :] >= position, q), blocked(keep, q))


__all__ = ["FirstKeys"]
