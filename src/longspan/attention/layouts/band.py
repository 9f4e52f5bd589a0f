"""The band: a sliding window in overlapping blocks (K1)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention import flash
from longspan.attention.flash import BLOCKED
from longspan.attention.layouts.base import PIECE, Layout, blocked_where, ceil_div, first_rows, products, wide


@dataclass(frozen=True)
class Band(Layout):
    """Query i reads the keys i - left .. i + right (K1); `past` keys come before the first query's own.

    Queries go in blocks. The keys of a block are an overlapping view of the sequence, and one tile of a mask serves
    all blocks but those at the two ends; gradients of keys are folded back by shifted additions, never scattered.
    """

    left: int
    right: int
    past: int = 0
    takes_bias = True
    # Rows of a block. Larger blocks waste work on masked keys, smaller ones waste calls, and in the backward pass
    # smaller ones fold more gradients; measured with benchmarks/attention.py.
    block = 32
    block_backward = 64

    @property
    def span(self) -> int:
        return self.left + self.block + self.right

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        queries, keys = q.shape[2], k.shape[2]
        count = self._count(queries)
        blocks = pad(q, (0, 0, 0, count * self.block - queries)).unflatten(2, (count, self.block))
        scores = products(blocks, self._windows(k, count).transpose(-1, -2), scale)
        valid = torch.ones(1, keys, dtype=torch.bool, device=q.device) if keep is None else keep
        valid = self._windows(valid[:, None, :, None], count)[..., 0, :]  # batch 1 count span
        offsets = self._offsets(self.block, q.device)
        inside = (offsets >= -self.left) & (offsets <= self.right)
        scores = scores.masked_fill(~(inside & valid[:, :, :, None, :]), BLOCKED)
        if bias is not None:
            scores = scores + self._bias(bias, offsets)[None, :, None]
        return first_rows(scores.flatten(2, 3), queries)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        queries = weights.shape[2]
        count = self._count(queries)
        blocks = pad(weights, (0, 0, 0, count * self.block - queries)).unflatten(2, (count, self.block))
        return first_rows((blocks @ self._windows(v, count).transpose(-1, -2)).flatten(2, 3), queries)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        out = torch.empty_like(q)
        lse = q.new_empty(q.shape[:3], dtype=wide(q.dtype))
        for run in self._runs(self.block, q, k, keep, bias):
            part, part_lse = flash.forward(run.queries(q), run.keys(k), run.keys(v), scale, mask=run.mask)
            run.queries(out).copy_(part)
            run.queries(lse[..., None])[..., 0].copy_(part_lse)
        return out, lse

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
        dq = torch.empty_like(q)
        # Room in front of the first key and behind the last, so that every fold lands inside.
        lead = max(0, self.left - self.past)
        block = self.block_backward
        steps = ceil_div(self.left + block + self.right, block)
        room = lead + k.shape[2] + (steps + 1) * block + self.right
        dk, dv = (x.new_zeros(*x.shape[:2], room, x.shape[3]) for x in (k, v))
        for run in self._runs(block, q, k, keep, bias):
            dq_part, dk_part, dv_part = flash.backward(
                run.queries(g),
                run.queries(q),
                run.keys(k),
                run.keys(v),
                run.queries(out),
                run.queries(lse[..., None])[..., 0],
                scale,
                mask=run.mask,
            )
            run.queries(dq).copy_(dq_part)
            for total, part in ((dk, dk_part), (dv, dv_part)):
                total = total[run.rows]
                if run.count == 1:
                    begin = run.first_key + lead
                    total[:, begin : begin + run.span] += part[0]
                    continue
                for step in range(ceil_div(run.span, run.block)):
                    width = min(run.block, run.span - step * run.block)
                    begin = run.first_key + lead + step * run.block
                    target = total[:, begin : begin + run.count * run.block].unflatten(1, (run.count, run.block))
                    found = part[:, :, step * run.block : step * run.block + width]
                    target[:, :, :width] += found.transpose(0, 1)
        inside = slice(lead, lead + k.shape[2])
        return dq, dk[:, :, inside], dv[:, :, inside]

    def width(self, keys: int) -> int:
        return self.span

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        full, rest = divmod(queries, self.block)
        return heads * (full * self.block * self.span + rest * (self.left + rest + self.right))

    def _count(self, queries: int) -> int:
        """Blocks of the plain way: one to spare, because exporters treat a size of 1 apart from all others."""
        return ceil_div(queries, self.block) + 1

    def _windows(self, x: Tensor, count: int) -> Tensor:
        """(batch, heads, blocks, width, span): the keys that each block of queries may reach."""
        before = self.left - self.past
        if before < 0:  # keys that no query reaches
            x, before = x[:, :, -before:], 0
        room = (count - 1) * self.block + self.span
        return pad(x, (0, 0, before, room - before - x.shape[2])).unfold(2, self.span, self.block)

    def _offsets(self, rows: int, device: torch.device) -> Tensor:
        """key - query within a block of `rows` queries: (rows, span)."""
        return (
            torch.arange(self.left + rows + self.right, device=device)
            - self.left
            - torch.arange(rows, device=device)[:, None]
        )

    def _bias(self, bias: Tensor, offsets: Tensor) -> Tensor:
        middle = bias.shape[1] // 2
        return bias[:, (offsets + middle).clamp(0, bias.shape[1] - 1)]

    def _runs(self, block: int, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None) -> Iterator["_Run"]:
        """The fused calls: runs of blocks, each for as many heads (or batch rows) as stay in cache."""
        batch, heads, queries, width = q.shape
        shift, span = self.past - self.left, self.left + block + self.right
        full = queries // block
        first = min(full, max(0, -(shift // block)))  # blocks before it reach in front of key 0
        last = min(full, max(first, (k.shape[2] - span - shift) // block + 1))  # from it on: past the last key
        edges = [(0, first), (first, last), (last, full)] if last > first else [(0, full)]
        most = max(1, PIECE // (block * span)) if keep is not None else full
        ranges = [(s, min(s + most, e), block) for b, e in edges for s in range(b, e, most or 1)]
        if queries % block:
            ranges.append((full, full + 1, queries - full * block))
        for begin, end, rows in ranges:
            span = self.left + rows + self.right
            first_key = begin * block + shift
            mask = self._tile(block, rows, end - begin, first_key, q, k, keep, bias)
            together = max(1, PIECE // ((end - begin) * span * width))
            # One sequence: several heads in a call. Several sequences: one head, so that no mask is copied.
            index: tuple[int | slice, int | slice]
            if batch == 1:
                for head in range(0, heads, together):
                    index = (0, slice(head, head + together))
                    part = mask[0, index[1]] if bias is not None else mask
                    yield _Run(index, begin * block, first_key, end - begin, rows, span, part)
            else:
                for head in range(heads):
                    part = mask[:, head] if bias is not None else mask
                    for row in range(0, batch, together):
                        index = (slice(row, row + together), head)
                        own = part[index[0]] if part.shape[0] > 1 else part
                        yield _Run(index, begin * block, first_key, end - begin, rows, span, own)

    def _tile(
        self,
        block: int,
        rows: int,
        count: int,
        first_key: int,
        q: Tensor,
        k: Tensor,
        keep: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        """What is added to the scores: (batch or 1, [heads,] blocks or 1, rows, span)."""
        offsets = self._offsets(rows, q.device)
        tile = blocked_where((offsets < -self.left) | (offsets > self.right), q)
        span, keys = offsets.shape[1], k.shape[2]
        last_key = first_key + (count - 1) * block + span
        if keep is not None or first_key < 0 or last_key > keys:
            valid = torch.ones(1, keys, dtype=torch.bool, device=q.device) if keep is None else keep
            valid = _slice_padded(valid[..., None], first_key, last_key)[..., 0]
            tile = tile + blocked_where(~valid, q).unfold(1, span, block)[:, :, None, :]
        else:
            tile = tile[None, None]
        if bias is None:
            return tile
        return tile[:, None] + self._bias(bias, offsets).to(tile.dtype)[None, :, None]


@dataclass(frozen=True)
class _Run:
    """One fused call of a band: a run of blocks, for some heads of one sequence or one head of some."""

    rows: tuple[int | slice, int | slice]  # which (batch, heads)
    first_query: int
    first_key: int  # may lie before 0
    count: int  # blocks
    block: int
    span: int
    tile: Tensor  # (rows or 1, blocks or 1, block, span)

    # The kernel's batch is the blocks and its heads are the rows: gradients then come back block by block.

    @property
    def mask(self) -> Tensor:
        return self.tile.transpose(0, 1)

    def queries(self, x: Tensor) -> Tensor:
        """(blocks, rows, block, width), a view"""
        inside = x[self.rows][:, self.first_query : self.first_query + self.count * self.block]
        return inside.unflatten(1, (self.count, self.block)).transpose(0, 1)

    def keys(self, x: Tensor) -> Tensor:
        """(blocks, rows, span, width), an overlapping view where the sequence reaches that far"""
        last = self.first_key + (self.count - 1) * self.block + self.span
        windows = _slice_padded(x[self.rows], self.first_key, last).unfold(1, self.span, self.block)
        return windows.permute(1, 0, 3, 2)


def _slice_padded(x: Tensor, begin: int, end: int) -> Tensor:
    """x[:, begin:end] of (rows, length, width), zero where that lies outside."""
    length = x.shape[1]
    inside = x[:, max(0, begin) : max(0, min(end, length))]
    before, behind = max(0, -begin), max(0, end - max(length, begin))
    return pad(inside, (0, 0, before, behind)) if before or behind else inside
