"""Stairs: after every `stride` queries, one more key can be read (compressed memories)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts import strips
from longspan.attention.layouts.base import Layout, add, blocked, blocked_where, products, wide

Number = TypeVar("Number", int, Tensor)


@dataclass(frozen=True)
class Stairs(Layout):
    """Query i reads the first (i + start) // stride + extra keys; the last query reads all of them.

    Queries are processed in strips of whole strides, which end with the same steps: one shifted mask serves all strips,
    and keys that no query of a strip reads are skipped. Processing the queries residue by residue, with the kernel's
    causal mask, is also exact but slower: a triangle of n / stride rows has wider steps.
    """

    stride: int
    start: int = 0
    extra: int = 0
    step = 1

    @property
    def rows(self) -> int:
        """Queries of a strip; more waste work on masked keys, fewer waste calls."""
        return max(1, 192 // self.stride) * self.stride

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        scores = add(products(q, k, scale), blocked(keep, q))
        seen = self.seen(torch.arange(q.shape[2], device=q.device))
        return scores.masked_fill(torch.arange(k.shape[2], device=q.device) >= seen[:, None], BLOCKED)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple[Layout, slice]:
        return replace(self, start=self.start + begin), slice(0, max(1, self.seen(end - 1)))

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        return strips.forward(q, k, v, self._strips(q, keep), scale)

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
        return strips.backward(g, q, k, v, out, lse, self._strips(q, keep), scale)

    def width(self, keys: int) -> int:
        return keys

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * sum((end - begin) * self.seen(end - 1) for begin, end in self._cuts(queries))

    def seen(self, query: Number) -> Number:
        """The number of keys that a query reads."""
        return (query + self.start) // self.stride + self.extra

    def _cuts(self, queries: int) -> Iterator[tuple[int, int]]:
        return ((begin, min(begin + self.rows, queries)) for begin in range(0, queries, self.rows))

    def _strips(self, q: Tensor, keep: Tensor | None) -> Iterator[strips.Strip]:
        """(queries, keys that the last of them reads, added mask); queries that read nothing are skipped."""
        queries = q.shape[2]
        most = self.seen(queries - 1)
        # The first strip's steps, after as many columns as all queries of the last strip read.
        steps = torch.arange(self.seen(0), self.seen(self.rows - 1), device=q.device)
        hidden = steps >= self.seen(torch.arange(self.rows, device=q.device))[:, None]
        tile = torch.cat([q.new_zeros(self.rows, most, dtype=wide(q.dtype)), blocked_where(hidden, q)], dim=1)
        for begin, end in self._cuts(queries):
            seen, by_all = self.seen(end - 1), self.seen(begin)
            if not seen:
                continue
            mask = None if by_all == seen else tile[: end - begin, most - by_all : most - by_all + seen]
            if keep is not None:
                padding = blocked(keep[:, :seen], q)
                mask = padding if mask is None or padding is None else mask + padding
            yield slice(begin, end), seen, mask
