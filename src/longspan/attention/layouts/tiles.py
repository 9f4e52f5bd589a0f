"""Tiles: the queries of a block all read the same stretch of keys."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts import runs
from longspan.attention.layouts.base import PIECE, Layout, blocked_where, ceil_div, first_rows, products
from longspan.attention.layouts.runs import BlockRun, mask_of, portions

ROWS = 128  # queries of one causal fused call: more compute masked scores, fewer run slower


@dataclass(frozen=True)
class Tiles(Layout):
    """A query reads its block, `before` keys before it and `after` keys after it; if causal, none after itself.

    There are as many queries as keys. The keys of a block are a view, cut off where the sequence ends, so only
    causality needs a mask. A causal block is processed in steps, so that its first rows skip keys that only later rows
    may read.
    """

    block: int
    before: int = 0
    after: int = 0
    causal: bool = False

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        scores = products(self._split(q), self._windows(k, queries), scale)
        valid = torch.ones(1, keys, dtype=torch.bool, device=q.device) if keep is None else keep
        readable = self._windows(valid[:, None, :, None], queries)[..., 0][:, :, :, None, :]
        if self.causal:
            readable = readable & ~_later(self.block, self._span, self.before, q.device)
        return first_rows(scores.masked_fill(~readable, BLOCKED).flatten(2, 3), queries)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        queries = weights.shape[2]
        return first_rows((self._split(weights) @ self._windows(v, queries)).flatten(2, 3), queries)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        return runs.forward(q, k, v, self._runs(q, k, keep), scale)

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
        return runs.backward(g, q, k, v, out, lse, self._runs(q, k, keep), scale)

    def width(self, keys: int) -> int:
        return self._span

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * sum(rows.count * rows.rows * rows.span for rows in self._block_rows(queries, keys))

    @property
    def _span(self) -> int:
        return self.before + self.block + (0 if self.causal else self.after)

    def _split(self, x: Tensor) -> Tensor:
        """(batch, heads, blocks, block, width): one extra block, because exporters specialise sizes of 1."""
        count = ceil_div(x.shape[2], self.block) + 1
        blocks: Tensor = pad(x, (0, 0, 0, count * self.block - x.shape[2])).unflatten(2, (count, self.block))
        return blocks

    def _windows(self, x: Tensor, queries: int) -> Tensor:
        """(batch, heads, blocks, span, width): the keys of each block of queries"""
        count = ceil_div(queries, self.block) + 1
        length = (count - 1) * self.block + self._span
        padded = pad(x, (0, 0, self.before, length - self.before - x.shape[2]))
        return padded.unfold(2, self._span, self.block).transpose(-1, -2)

    def _block_rows(self, queries: int, keys: int) -> Iterator["_BlockRows"]:
        """Rows of blocks that share one call; a block whose keys the sequence cuts off has a call to itself."""
        step = min(ROWS, self.block) if self.causal else self.block
        for begin in range(0, min(self.block, queries), step):
            whole = min(begin + step, self.block)
            blocks = (queries - whole) // self.block + 1 if queries >= whole else 0
            yield from self._cut(begin, whole, 0, blocks, keys)
            rest = queries - blocks * self.block
            if begin < rest < whole:  # the last block ends within these rows
                yield from self._cut(begin, rest, blocks, blocks + 1, keys)

    def _cut(self, begin: int, end: int, first: int, last: int, keys: int) -> Iterator["_BlockRows"]:
        """The rows begin … end of the blocks first … last."""
        reach = end if self.causal else self.block + self.after  # where their keys end, from the block's start
        inside = max(first, ceil_div(self.before, self.block))
        beyond = max(inside, min(last, (keys - reach) // self.block + 1))
        for block in [*range(first, min(inside, last)), *range(beyond, last)]:
            start, stop = max(0, block * self.block - self.before), min(keys, block * self.block + reach)
            yield _BlockRows(block * self.block + begin, 1, end - begin, start, stop - start)
        if beyond > inside:
            start = inside * self.block
            yield _BlockRows(start + begin, beyond - inside, end - begin, start - self.before, self.before + reach)

    def _runs(self, q: Tensor, k: Tensor, keep: Tensor | None) -> Iterator[BlockRun]:
        """The fused calls, each for as many blocks and heads (or sequences) as fit in cache."""
        batch, heads, queries, width = q.shape
        for rows in self._block_rows(queries, k.shape[2]):
            mask_rows = rows.rows if self.causal else 1
            most = rows.count if keep is None else max(1, PIECE // (mask_rows * rows.span))
            for begin in range(0, rows.count, most):
                count, shift = min(most, rows.count - begin), begin * self.block
                first_query, first_key = rows.first_query + shift, rows.first_key + shift
                mask = None
                if self.causal:
                    later = _later(rows.rows, rows.span, first_query - first_key, q.device)
                    mask = blocked_where(later, q)[None, None]
                if keep is not None:
                    stop = first_key + (count - 1) * self.block + rows.span
                    spans = blocked_where(~keep[:, first_key:stop], q).unfold(1, rows.span, self.block)[:, :, None]
                    mask = spans if mask is None else mask + spans
                size = max(1, PIECE // (count * rows.span * width))
                for portion in portions(batch, heads, size):
                    added = None if mask is None else mask_of(mask, portion)
                    yield BlockRun(
                        portion, count, first_query, rows.rows, self.block, first_key, rows.span, self.block, added
                    )


@dataclass(frozen=True)
class _BlockRows:
    """The same rows of `count` consecutive blocks, and the keys that they read."""

    first_query: int
    count: int
    rows: int
    first_key: int
    span: int


def _later(rows: int, span: int, ahead: int, device: torch.device) -> Tensor:
    """(rows, span): whether a key comes after a query; `ahead` keys precede the first query's own."""
    return torch.arange(span, device=device) - ahead > torch.arange(rows, device=device)[:, None]
