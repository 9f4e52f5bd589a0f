"""Blocks of keys chosen by a table (BigBird)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, product
from typing import NamedTuple

import torch
from torch import Tensor

from longspan.attention.kernels import flash
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts.base import Layout, blocked_where, ceil_div, first_rows, pad_rows, products, wide


@dataclass(frozen=True, eq=False)
class BlockTable(Layout):
    """Query block b of head h reads the key blocks `table[h, b]`; -1 means none.

    The table may differ by sequence: `table[sequence, h, b]`. A block listed twice is read, and counted, twice: the
    caller must avoid that.
    """

    table: Tensor  # ([batch or 1,] heads or 1, query blocks, slots), integers
    block: int

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        heads, queries = q.shape[1], q.shape[2]
        gathered = self._gather(self._split(k), heads).flatten(3, 4)
        scores = products(self._split(q), gathered, scale)
        valid = self._gather(self._valid(k, keep), heads)[..., 0].flatten(3, 4)
        valid = valid & (self._tables >= 0).repeat_interleave(self.block, -1)
        scores = scores.masked_fill(~valid[:, :, :, None], BLOCKED)
        return self._join(scores, queries)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        mixed = self._split(weights) @ self._gather(self._split(v), weights.shape[1]).flatten(3, 4)
        return self._join(mixed, weights.shape[2])

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        blocks, keys, values = self._split(q), self._rows(k), self._rows(v)
        out, lse = torch.empty_like(blocks), blocks.new_full(blocks.shape[:4], BLOCKED, dtype=wide(q.dtype))
        self._clear_idle(out)
        gather_keys, gather_values = _BlockGatherer(self.block), _BlockGatherer(self.block)
        for run in self._calls(blocks, self._valid(k, keep)):
            run_out, run_lse = flash.forward(
                run.of(blocks), gather_keys(keys, run), gather_values(values, run), scale, mask=run.mask
            )
            out[run.rows], lse[run.rows] = run_out[:, 0], run_lse[:, 0]
        return self._join(out, q.shape[2]), self._join(lse[..., None], q.shape[2])[..., 0]

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
        keys, values = self._rows(k), self._rows(v)
        g, blocks, out, lse = (self._split(x) for x in (g, q, out, lse[..., None]))
        dq, dk, dv = torch.empty_like(blocks), torch.zeros_like(keys), torch.zeros_like(values)
        self._clear_idle(dq)
        gather_keys, gather_values = _BlockGatherer(self.block), _BlockGatherer(self.block)
        for run in self._calls(blocks, self._valid(k, keep)):
            dq_part, *parts = flash.backward(
                run.of(g),
                run.of(blocks),
                gather_keys(keys, run),
                gather_values(values, run),
                run.of(out),
                run.of(lse)[..., 0],
                scale,
                mask=run.mask,
            )
            dq[run.rows] = dq_part[:, 0]
            for total, part in zip((dk, dv), parts):
                total.index_add_(0, run.key_blocks, part.reshape(len(run.key_blocks), -1))
        dk, dv = (total.view(*k.shape[:2], -1, self.block, x.shape[3]) for total, x in ((dk, k), (dv, v)))
        return self._join(dq, q.shape[2]), self._join(dk, k.shape[2]), self._join(dv, v.shape[2])

    def width(self, keys: int) -> int:
        return self.table.shape[-1] * self.block

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        tables = self._tables[0]
        busy = int((tables >= 0).any(-1).sum()) * (heads // tables.shape[0])
        return busy * self.block * tables.shape[-1] * self.block

    def of_heads(self, heads: slice) -> Layout:
        return self if self.table.shape[-3] == 1 else BlockTable(self.table[..., heads, :, :], self.block)

    @property
    def _tables(self) -> Tensor:
        """(batch or 1, heads or 1, query blocks, slots)"""
        return self.table if self.table.dim() == 4 else self.table[None]

    def _split(self, x: Tensor) -> Tensor:
        """(batch, heads, blocks, block, width)"""
        count = ceil_div(x.shape[2], self.block)
        missing = count * self.block - x.shape[2]
        if torch.compiler.is_compiling() or missing:  # padding by nothing is a copy too
            x = pad_rows(x, 0, missing)
        blocks: Tensor = x.unflatten(2, (count, self.block))
        return blocks

    def _rows(self, x: Tensor) -> Tensor:
        """Each block of each head as one row: (batch · heads · blocks, block · width)."""
        return self._split(x).flatten(3, 4).flatten(0, 2)

    def _join(self, x: Tensor, length: int) -> Tensor:
        """The inverse: (batch, heads, length, width)."""
        return first_rows(x.flatten(2, 3), length)

    def _valid(self, k: Tensor, keep: Tensor | None) -> Tensor:
        """(batch or 1, 1, key blocks, block, 1)"""
        if keep is None:
            keep = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device)
        return self._split(keep[:, None, :, None])

    def _gather(self, blocks: Tensor, heads: int) -> Tensor:
        """(batch, heads, query blocks, slots, block, width)"""
        table = self._tables.clamp_min(0)
        batch = max(blocks.shape[0], table.shape[0])
        blocks = blocks.expand(batch, heads, -1, -1, -1)
        sequence = torch.arange(batch, device=table.device)[:, None, None, None]
        head = torch.arange(heads, device=table.device)[:, None, None]
        return blocks[sequence, head, table]

    def _clear_idle(self, blocks: Tensor) -> None:
        """Write zeros for query blocks that read nothing: no call covers them."""
        idle = (self._tables < 0).all(-1)
        if idle.any():  # they are few, and a mask over all blocks would cost a pass
            blocks[idle.expand(blocks.shape[:3]).nonzero(as_tuple=True)] = 0.0

    def _calls(self, q: Tensor, valid: Tensor) -> Iterator["_FusedCall"]:
        """The fused calls: as many query blocks of one head as `PIECE` allows; isolated ones come last, together."""
        batch, heads, _, block, width = q.shape
        tables = self._tables.expand(batch, heads, -1, -1)
        listed = tables >= 0
        open_keys = valid[..., 0].expand(batch, heads, -1, -1).flatten(0, 2)
        first = torch.arange(0, len(open_keys), valid.shape[2]).view(batch, heads, 1, 1)
        key_blocks = tables.clamp_min(0) + first
        open_blocks = open_keys.all(-1)[key_blocks] & listed
        kinds = (listed.any(-1).int() + open_blocks.all(-1).int()).tolist()
        most = max(1, PIECE // (2 * tables.shape[3] * block * width))

        def call(rows: Rows, kind: int) -> _FusedCall:
            mask = None
            if kind == MASKED:
                read = open_keys[key_blocks[rows]] & listed[rows][..., None]
                mask = blocked_where(~read, q).flatten(1)[:, None, None]
            return _FusedCall(rows, key_blocks[rows].flatten(), len(key_blocks[rows]), mask)

        isolated: list[tuple[int, int, int]] = []
        for sequence, head in product(range(batch), range(heads)):
            for kind, begin, end in _stretches(kinds[sequence][head], most):
                if kind == MASKED and end - begin < ISOLATED:
                    isolated += [(sequence, head, row) for row in range(begin, end)]
                elif kind != IDLE:
                    yield call((sequence, head, slice(begin, end)), kind)
        for begin in range(0, len(isolated), most):
            yield call(tuple(torch.tensor(isolated[begin : begin + most]).unbind(1)), MASKED)


IDLE, MASKED = 0, 1  # query blocks that read nothing, and those that need a mask; 2 for all others
PIECE = 1 << 22  # most numbers of gathered keys and values in one fused call; fewer waste calls
ISOLATED = 4  # fewer neighbours than this share a call with blocks of other heads


def _stretches(kinds: list[int], most: int) -> Iterator[tuple[int, int, int]]:
    """(kind, begin, end) of stretches of one kind, of at most `most` blocks."""
    begin = 0
    for kind, group in groupby(kinds):
        end = begin + len(list(group))
        for first in range(begin, end, most):
            yield kind, first, min(first + most, end)
        begin = end


Rows = tuple[int, int, slice] | tuple[Tensor, ...]  # index of sequence, head and query blocks


class _FusedCall(NamedTuple):
    """One fused call: some query blocks and the key blocks that they read."""

    rows: Rows
    key_blocks: Tensor  # numbered through all heads: (query blocks · slots,)
    blocks: int  # number of query blocks
    mask: Tensor | None

    def of(self, blocks: Tensor) -> Tensor:
        """(query blocks, 1, block, width)"""
        return blocks[self.rows][:, None]


class _BlockGatherer:
    """Gathers key blocks into a reused buffer: allocating a fresh one costs more than the copy."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.buffer: Tensor | None = None

    def __call__(self, keys: Tensor, run: _FusedCall) -> Tensor:
        """(query blocks, 1, slots · block, width)"""
        if self.buffer is None or len(self.buffer) < len(run.key_blocks):
            self.buffer = keys.new_empty(len(run.key_blocks), keys.shape[1])
        buffer = self.buffer[: len(run.key_blocks)]
        torch.index_select(keys, 0, run.key_blocks, out=buffer)
        return buffer.view(run.blocks, 1, -1, keys.shape[1] // self.block)
