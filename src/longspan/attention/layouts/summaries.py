"""Summary columns: a few fixed positions of every past block (Sparse Transformer, "fixed" pattern)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts import strips
from longspan.attention.layouts.base import Layout, add, blocked_where, ceil_div, products


@dataclass(frozen=True)
class Summaries(Layout):
    """Head h reads, from every block of `stride` positions, the `count` keys from `columns[h]` on.

    A query reads the blocks before its own and, if `with_block`, its own block up to itself. The last query is at the
    last key, so past keys may precede the queries' own. The keys are gathered once. Queries are processed in pieces of
    whole blocks, each with the keys within its reach.
    """

    stride: int
    count: int
    columns: tuple[int, ...]
    with_block: bool = False
    rows = 256  # queries of a piece, rounded down to whole blocks
    step = 1

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        at = self._at(k)
        scores = products(q, self._gather(k, at), scale)
        hidden = self._hidden(0, q.shape[2], k.shape[2] - q.shape[2], at)[None]
        if keep is not None:
            hidden = hidden | ~self._gather_keep(keep, at)
        return scores.masked_fill(hidden, BLOCKED)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ self._gather(v, self._at(v))

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple[Layout, slice]:
        return self, slice(0, keys - queries + end)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        at = self._at(k)
        keys, values = self._gather(k, at), self._gather(v, at)
        return strips.forward(q, keys, values, self._pieces(q, k, keep, at), scale)

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
        at = self._at(k)
        keys, values = self._gather(k, at), self._gather(v, at)
        dq, dkeys, dvalues = strips.backward(g, q, keys, values, out, lse, self._pieces(q, k, keep, at), scale)
        return dq, self._put_back(dkeys, k, at), self._put_back(dvalues, v, at)

    def width(self, keys: int) -> int:
        return ceil_div(keys, self.stride) * self.count

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * sum((end - begin) * seen for begin, end, seen in self._spans(queries, keys - queries))

    def of_heads(self, heads: slice) -> Layout:
        return replace(self, columns=self.columns[heads])

    def _at(self, k: Tensor) -> Tensor:
        """Positions of each head's summaries, oldest first: (heads, blocks · count); the last may be past the end."""
        blocks = torch.arange(ceil_div(k.shape[2], self.stride), device=k.device) * self.stride
        within = torch.tensor(self.columns, device=k.device)[:, None] + torch.arange(self.count, device=k.device)
        return (within[:, None, :] + blocks[:, None]).flatten(1)

    def _gather(self, x: Tensor, at: Tensor) -> Tensor:
        heads = torch.arange(x.shape[1], device=x.device)[:, None]
        return x[:, heads, at.clamp_max(x.shape[2] - 1)]

    def _gather_keep(self, keep: Tensor, at: Tensor) -> Tensor:
        """(batch, heads, 1, summaries)"""
        return keep[:, at.clamp_max(keep.shape[1] - 1)][:, :, None]

    def _put_back(self, gradient: Tensor, like: Tensor, at: Tensor) -> Tensor:
        """Scatter the gradient of the gathered keys back; columns past the end, which no query read, are dropped."""
        padded = ceil_div(like.shape[2], self.stride) * self.stride
        total = gradient.new_zeros(*like.shape[:2], padded, like.shape[3])
        total[:, torch.arange(like.shape[1], device=like.device)[:, None], at] = gradient
        return total[:, :, : like.shape[2]]

    def _hidden(self, begin: int, end: int, past: int, at: Tensor) -> Tensor:
        """Which summaries the queries begin..end may not read: (heads or 1, rows, summaries)."""
        query = torch.arange(begin, end, device=at.device)[:, None] + past
        if self.with_block:
            return at[:, None] > query
        # Each block before the query's own has `count` summaries, in every head.
        return (torch.arange(at.shape[1], device=at.device) // self.count >= query // self.stride)[None]

    def _spans(self, queries: int, past: int) -> list[tuple[int, int, int]]:
        """(first and last query, summaries within reach) of each fused call; queries that reach none are skipped."""
        size = self.stride * max(1, self.rows // self.stride)
        edges = [0, *range(size - past % size, queries, size), queries]
        spans = []
        for begin, end in pairwise(edges):
            seen = ((past + end - 1) // self.stride + self.with_block) * self.count
            if seen:
                spans.append((begin, end, seen))
        return spans

    def _pieces(self, q: Tensor, k: Tensor, keep: Tensor | None, at: Tensor) -> Iterator[strips.Strip]:
        """(queries, number of summaries, added mask)"""
        past = k.shape[2] - q.shape[2]
        padding = None if keep is None else blocked_where(~self._gather_keep(keep, at), q)
        for begin, end, seen in self._spans(q.shape[2], past):
            mask = None if padding is None else padding[..., :seen]
            one_block = (past + begin) // self.stride == (past + end - 1) // self.stride
            if self.with_block or not one_block:
                mask = add(blocked_where(self._hidden(begin, end, past, at[:, :seen]), q)[None], mask)
            yield slice(begin, end), seen, mask
