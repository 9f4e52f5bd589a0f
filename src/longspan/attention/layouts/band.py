"""Sliding window: each query reads the keys around it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attention.kernels import flash_dropout
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts import runs
from longspan.attention.layouts.base import PIECE, Layout, blocked_where, ceil_div, first_rows, pad_rows, products
from longspan.attention.layouts.dense import Dense
from longspan.attention.layouts.runs import BlockRun, mask_of, portions, slice_padded

LANES = 16  # scores that the fused kernel processes at once; it takes the remainder of a row one by one
FEW = 4  # a remainder up to this costs less than filling up the lanes


@dataclass(frozen=True)
class Band(Layout):
    """Query i reads the keys i - left .. i + right; `past` keys precede the first query's own key.

    Queries go in blocks. The keys of a block are an overlapping view of the sequence, and one mask tile serves all
    blocks except those at the two ends. Gradients of keys are folded back by shifted additions, without a scatter.
    """

    left: int
    right: int
    past: int = 0
    takes_bias = True
    # Rows of a block. Larger blocks waste work on masked keys, smaller ones waste calls and, in the backward pass, fold
    # more gradients; measured with benchmarks/attention.py.
    block = 32
    block_backward = 64
    step = 1

    @property
    def span(self) -> int:
        return self.left + self.block + self.right

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        count = self._count(queries)
        blocks = pad_rows(q, 0, count * self.block - queries).unflatten(2, (count, self.block))
        scores = products(blocks, self._windows(k, count).transpose(-1, -2), scale)
        valid = torch.ones(1, keys, dtype=torch.bool, device=q.device) if keep is None else keep
        valid = self._windows(valid[:, None, :, None], count)[..., 0, :]  # batch 1 count span
        offsets = self._offsets(self.block, self.span, q.device)
        inside = (offsets >= -self.left) & (offsets <= self.right)
        scores = scores.masked_fill(~(inside & valid[:, :, :, None, :]), BLOCKED)
        if bias is not None:
            scores = scores + self._bias(bias, offsets)[None, :, None]
        return first_rows(scores.flatten(2, 3), queries)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        queries = weights.shape[2]
        count = self._count(queries)
        blocks = pad_rows(weights, 0, count * self.block - queries).unflatten(2, (count, self.block))
        return first_rows((blocks @ self._windows(v, count).transpose(-1, -2)).flatten(2, 3), queries)

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple[Layout, slice]:
        first = min(max(0, self.past + begin - self.left), keys - 1)
        last = max(first + 1, min(keys, self.past + end + self.right))
        return Band(self.left, self.right, self.past + begin - first), slice(first, last)

    def along(self, x: Tensor, queries: int) -> Tensor:
        """A value per key (batch, keys) in the layout of the scores: (batch, queries, width), 0 outside."""
        windows = self._windows(x[:, None, :, None], self._count(queries))  # batch 1 blocks 1 span
        return first_rows(windows.expand(-1, -1, -1, self.block, -1).flatten(2, 3), queries)[:, 0]

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        if self._short(q.shape[2], k.shape[2]):
            layout, table = self._dense(q, bias)
            return layout.forward(q, k, v, keep, table, scale)
        # Dropout needs the same blocks forward and backward, and its plain products prefer larger ones.
        block = self.block_backward if flash_dropout.active() else self.block
        return runs.forward(q, k, v, self._runs(block, q, k, keep, bias), scale)

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
        if self._short(q.shape[2], k.shape[2]):
            layout, table = self._dense(q, bias)
            return layout.backward(g, q, k, v, keep, table, out, lse, scale)
        block = self.block_backward
        lead, trail = max(0, self.left + LANES - self.past), block + self.right
        calls = self._runs(block, q, k, keep, bias)
        return runs.backward(g, q, k, v, out, lse, calls, scale, lead=lead, trail=trail)

    def width(self, keys: int) -> int:
        return self.span

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * (queries * keys if self._short(queries, keys) else self._pairs(queries))

    def _pairs(self, queries: int) -> int:
        full, rest = divmod(queries, self.block)
        return full * self.block * self._whole(self.block) + rest * self._whole(rest)

    def _whole(self, rows: int) -> int:
        """Keys of a fused block of `rows` queries; blocked ones in front fill the last lane if that is faster."""
        span = self.left + rows + self.right
        return span if span % LANES <= FEW else ceil_div(span, LANES) * LANES

    def _short(self, queries: int, keys: int) -> bool:
        """Whether all pairs are fewer than the blocks', whose spans reach past both ends of a short text."""
        return queries == keys and self.past == 0 and queries * keys <= self._pairs(queries)

    def _dense(self, q: Tensor, bias: Tensor | None) -> tuple[Dense, Tensor | None]:
        """A `Dense` layout for a short text, and a bias table that blocks the offsets outside the window."""
        last = q.shape[2] - 1
        if bias is None and self.left >= last and (self.right >= last or self.right == 0):
            return Dense(causal=self.right < last), None
        offsets = torch.arange(-last, last + 1, device=q.device)
        table = torch.zeros(1, len(offsets), device=q.device) if bias is None else self._bias(bias, offsets)
        return Dense(), table.masked_fill((offsets < -self.left) | (offsets > self.right), BLOCKED)

    def _count(self, queries: int) -> int:
        """Blocks of the plain implementation: one extra, because exporters specialise sizes of 1."""
        return ceil_div(queries, self.block) + 1

    def _windows(self, x: Tensor, count: int) -> Tensor:
        """(batch, heads, blocks, width, span): the keys within reach of each block of queries."""
        before = self.left - self.past
        if before < 0:  # keys that no query reaches
            x, before = x[:, :, -before:], 0
        padded = (count - 1) * self.block + self.span
        return pad_rows(x, before, padded - before - x.shape[2]).unfold(2, self.span, self.block)

    def _offsets(self, rows: int, span: int, device: torch.device) -> Tensor:
        """key - query within a block: (rows, span), where `span` keys end at the last one that is read."""
        before = span - rows - self.right
        return torch.arange(span, device=device) - before - torch.arange(rows, device=device)[:, None]

    def _bias(self, bias: Tensor, offsets: Tensor) -> Tensor:
        middle = bias.shape[1] // 2
        return bias[:, (offsets + middle).clamp(0, bias.shape[1] - 1)]

    def _runs(self, block: int, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None) -> Iterator[BlockRun]:
        """The fused calls: runs of blocks, each for as many heads (or sequences) as fit in cache."""
        batch, heads, queries, width = q.shape
        span = self._whole(block)
        shift, full = self.past + block + self.right - span, queries // block
        first = min(full, max(0, -(shift // block)))  # blocks before it reach in front of key 0
        last = min(full, max(first, (k.shape[2] - span - shift) // block + 1))  # from it on: past the last key
        edges = [(0, first), (first, last), (last, full)] if last > first else [(0, full)]
        most = max(1, PIECE // (block * span)) if keep is not None else full
        ranges = [(s, min(s + most, e), block) for b, e in edges for s in range(b, e, most or 1)]
        if queries % block:
            ranges.append((full, full + 1, queries - full * block))
        for begin, end, rows in ranges:
            span = self._whole(rows)
            first_key = begin * block + self.past + rows + self.right - span
            mask = self._tile(block, rows, span, end - begin, first_key, q, k, keep, bias)
            size = max(1, PIECE // ((end - begin) * span * width))
            for portion in portions(batch, heads, size):
                of_heads = mask if bias is None else mask[0, portion[1]] if batch == 1 else mask[:, portion[1]]
                added = mask_of(of_heads, portion)
                yield BlockRun(portion, end - begin, begin * block, rows, block, first_key, span, block, added)

    def _tile(
        self,
        block: int,
        rows: int,
        span: int,
        count: int,
        first_key: int,
        q: Tensor,
        k: Tensor,
        keep: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """The mask to add to the scores: (batch or 1, [heads,] blocks or 1, rows, span)."""
        offsets, keys = self._offsets(rows, span, q.device), k.shape[2]
        tile = blocked_where((offsets < -self.left) | (offsets > self.right), q)
        last_key = first_key + (count - 1) * block + span
        if keep is not None or first_key < 0 or last_key > keys:
            valid = torch.ones(1, keys, dtype=torch.bool, device=q.device) if keep is None else keep
            valid = slice_padded(valid[..., None], first_key, last_key)[..., 0]
            tile = tile + blocked_where(~valid, q).unfold(1, span, block)[:, :, None, :]
        else:
            tile = tile[None, None]
        if bias is None:
            return tile
        return tile[:, None] + self._bias(bias, offsets).to(tile.dtype)[None, :, None]
