"""Blocks of keys taken by a table (K2)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention import flash
from longspan.attention.flash import BLOCKED
from longspan.attention.layouts.base import PIECE, Layout, blocked_where, ceil_div, first_rows, products, wide


@dataclass(frozen=True, eq=False)
class Blocks(Layout):
    """Query block b of head h reads the key blocks `table[h, b]`, -1 standing for none (K2).

    A block that stands twice in a row of the table is read twice: who makes the table sees to that.
    """

    table: Tensor  # (heads or 1, query blocks, slots), integers
    block: int

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        heads, queries = q.shape[1], q.shape[2]
        gathered = self._gather(self._split(k), heads).flatten(3, 4)
        scores = products(self._split(q), gathered, scale)
        valid = self._valid(k, keep)
        scores = scores.masked_fill(~self._gather(valid, heads)[..., 0].flatten(3, 4)[:, :, :, None], BLOCKED)
        scores = scores.masked_fill(~(self.table >= 0).repeat_interleave(self.block, -1)[None, :, :, None], BLOCKED)
        return first_rows(scores.flatten(2, 3), queries)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        blocks = self._split(weights)
        mixed = blocks @ self._gather(self._split(v), weights.shape[1]).flatten(3, 4)
        return first_rows(mixed.flatten(2, 3), weights.shape[2])

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        blocks, keys, values = self._split(q), self._split(k), self._split(v)
        valid = self._valid(k, keep)
        out, lse = torch.empty_like(blocks), blocks.new_empty(blocks.shape[:4], dtype=wide(q.dtype))
        for head, run, index, mask in self._runs(blocks, valid):
            part, part_lse = flash.forward(
                blocks[:, head, run], _take(keys, head, index), _take(values, head, index), scale, mask=mask
            )
            out[:, head, run], lse[:, head, run] = part, part_lse
        return first_rows(out.flatten(2, 3), q.shape[2]), first_rows(lse.flatten(2, 3), q.shape[2])

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
        keys, values = self._split(k), self._split(v)
        rows = [self._split(x) for x in (g, q, out, lse[..., None])]
        valid = self._valid(k, keep)
        dq, dk, dv = torch.empty_like(rows[1]), torch.zeros_like(keys), torch.zeros_like(values)
        for head, run, index, mask in self._runs(rows[1], valid):
            part_g, part_q, part_out, part_lse = (x[:, head, run] for x in rows)
            found_k, found_v = _take(keys, head, index), _take(values, head, index)
            dq_part, dk_part, dv_part = flash.backward(
                part_g, part_q, found_k, found_v, part_out, part_lse[..., 0], scale, mask=mask
            )
            dq[:, head, run] = dq_part
            for total, part in ((dk, dk_part), (dv, dv_part)):
                pieces = part.unflatten(2, (index.shape[1], self.block)).flatten(1, 2)
                total[:, head].index_add_(1, index.flatten(), pieces)
        return (
            first_rows(dq.flatten(2, 3), q.shape[2]),
            first_rows(dk.flatten(2, 3), k.shape[2]),
            first_rows(dv.flatten(2, 3), v.shape[2]),
        )

    def width(self, keys: int) -> int:
        return self.table.shape[2] * self.block

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * ceil_div(queries, self.block) * self.block * self.table.shape[2] * self.block

    def _split(self, x: Tensor) -> Tensor:
        """(batch, heads, blocks, block, width)"""
        count = ceil_div(x.shape[2], self.block)
        return pad(x, (0, 0, 0, count * self.block - x.shape[2])).unflatten(2, (count, self.block))

    def _valid(self, k: Tensor, keep: Tensor | None) -> Tensor:
        """(batch or 1, 1, key blocks, block, 1)"""
        if keep is None:
            keep = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device)
        return self._split(keep[:, None, :, None])

    def _gather(self, blocks: Tensor, heads: int) -> Tensor:
        """(batch, heads, query blocks, slots, block, width)"""
        table = self.table.clamp_min(0).expand(heads, -1, -1)
        blocks = blocks.expand(-1, heads, -1, -1, -1)
        which = torch.arange(heads, device=table.device)[:, None, None]
        return blocks[:, which, table]

    def _runs(self, q: Tensor, valid: Tensor) -> Iterator[tuple[int, slice, Tensor, Tensor]]:
        """(head, query blocks, key blocks of each, added mask): as many query blocks as stay in cache."""
        batch, heads, count, block, width = q.shape
        slots = self.table.shape[2]
        together = max(1, PIECE // (batch * slots * block * width))
        for head in range(heads):
            table = self.table[head % self.table.shape[0]]
            for begin in range(0, count, together):
                run = slice(begin, min(begin + together, count))
                index = table[run]
                read = valid[:, 0].index_select(1, index.clamp_min(0).flatten()).unflatten(1, index.shape)[..., 0]
                read = read & (index >= 0)[None, :, :, None]
                yield head, run, index.clamp_min(0), blocked_where(~read, q).flatten(2, 3)[:, :, None]


def _take(blocks: Tensor, head: int, index: Tensor) -> Tensor:
    """(batch, query blocks, slots · block, width): the key blocks `index` (query blocks, slots) of one head."""
    return blocks[:, head].index_select(1, index.flatten()).unflatten(1, index.shape).flatten(2, 3)
