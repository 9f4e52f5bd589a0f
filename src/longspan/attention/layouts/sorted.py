"""Rounds of sorted buckets: each query reads the keys of its own slot and of the slot before it (Reformer)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.buffers import Buffers
from longspan.attention.devices import host_may_read
from longspan.attention.kernels import flash, flash_dropout
from longspan.attention.kernels.flash_dropout import BLOCKED, LN_2, LOG2_E
from longspan.attention.layouts import sorted_whole
from longspan.attention.layouts.base import PIECE, Layout, ceil_div, groups, pick_rows, products, wide
from longspan.attention.layouts.sorted_rows import HIDDEN_KEY, SortedRows, of_keys, of_queries, reading


@dataclass(frozen=True, eq=False)
class Sorted(Layout):
    """Every round sorts the tokens differently, and query i reads key j if slot_i - slot_j is 0 or 1.

    The caller ensures that such a key is at most `back` sorted positions before the query's block of `block` sorted
    positions, and not after that block. With `once`, a pair that several rounds contain is read in the first of them,
    so that the rounds make one softmax over their union.
    """

    order: Tensor  # (batch, heads, rounds, length): the positions, sorted
    slot: Tensor  # (batch, heads, rounds, length): the slot of each position; below 0: neither reads nor is read
    reads_self: Tensor  # (batch, heads, length), boolean: whether a token reads its own key
    block: int
    back: int
    causal: bool = False  # reads earlier positions only
    once: bool = True
    before: bool = True  # whether a query also reads the slot before its own

    @property
    def span(self) -> int:
        return self.back + self.block

    @property
    def rounds(self) -> int:
        return self.order.shape[2]

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        rows = self._rows(keep, self._count(q.shape[2]))
        parts = []
        for turn in range(self.rounds):
            order = rows.order[:, :, turn]
            scores = products(self._blocks(q, order), self._windows(k, order), scale)
            scores = scores.masked_fill(rows.hidden(turn).bool(), BLOCKED)
            parts.append(pick_rows(scores.flatten(2, 3), rows.undo[:, :, turn]))
        return torch.cat(parts, dim=-1)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        rows = self._rows(None, self._count(v.shape[2]))
        parts = []
        for turn, of_round in enumerate(weights.split(self.span, dim=-1)):
            order = rows.order[:, :, turn]
            mixed = self._blocks(of_round, order) @ self._windows(v, order)
            parts.append(pick_rows(mixed.flatten(2, 3), rows.undo[:, :, turn]))
        return torch.stack(parts).sum(dim=0)

    def _count(self, queries: int) -> int:
        """Blocks of the plain implementation: one extra, because exporters specialise sizes of 1."""
        return ceil_div(queries, self.block) + 1

    def _blocks(self, x: Tensor, order: Tensor) -> Tensor:
        """(batch, heads, count, block, width): sorted rows, with zeros for padding."""
        sorted_rows = pick_rows(pad(x, (0, 0, 1, 0)), order[..., self.back :])
        blocks: Tensor = sorted_rows.unflatten(2, (self._count(x.shape[2]), self.block))
        return blocks

    def _windows(self, x: Tensor, order: Tensor) -> Tensor:
        """(batch, heads, count, span, width)"""
        return pick_rows(pad(x, (0, 0, 1, 0)), order).unfold(2, self.span, self.block).transpose(-1, -2)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        if self._whole(q.shape[2]):
            whole_out, whole_lse = sorted_whole.forward(self, q, k, v, keep, scale)
            return whole_out, whole_lse
        # Batched products instead of the fused kernel: the mask then costs no extra pass (see `SortedRows.scores`).
        dropout = flash_dropout.active()
        out, lse = (q.new_empty(shape, dtype=wide(q.dtype)) for shape in (q.shape, q.shape[:3]))
        for index, rows in self._pieces(q, keep):
            sources = [x[index].flatten(0, 2).to(out.dtype) for x in (q, k, v)]
            parts = rows.buffers("parts", (self.rounds, *sources[0].shape), out.dtype, out.device)
            sums = rows.buffers("sums", (*parts.shape[:2], 2), out.dtype, out.device)
            for turn in range(self.rounds):
                queries, keys, values = (rows.sort(turn, name, x) for name, x in zip("qkv", sources))
                weights = rows.scores(turn, queries, keys, scale)
                largest = weights.amax(-1, keepdim=True)
                total = weights.sub_(largest).exp2_().sum(-1, keepdim=True)
                if dropout is not None:
                    weights.mul_(dropout.kept(weights.shape, weights.dtype))
                rows.unsort(turn, rows.multiply("mixed", weights, rows.windows(values)), out=parts[turn])
                rows.unsort(turn, torch.cat([largest, total], dim=-1), out=sums[turn])
            # One softmax over all rounds: weigh each round by its share of the whole sum.
            largest = sums[..., 0].amax(0)
            shares = torch.exp2(sums[..., 0] - largest)
            total = (shares * sums[..., 1]).sum(0)
            lse[index] = (largest + total.log2()).mul_(LN_2).view_as(lse[index])
            shares = shares.mul_((1.0 if dropout is None else dropout.scale) / total)[..., None]
            merged = torch.mul(parts[0], shares[0], out=out[index].view_as(parts[0]))
            for of_round, share in zip(parts[1:], shares[1:]):
                merged.addcmul_(of_round, share)
        return out.to(q.dtype), lse

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
        if self._whole(q.shape[2]):
            dq, dk, dv = sorted_whole.backward(self, g, q, k, v, keep, out, lse, scale)
            return dq, dk, dv
        dropout = flash_dropout.active()
        gradients = [x.new_empty(x.shape, dtype=lse.dtype) for x in (q, k, v)]
        # An infinite log-sum-exp makes the weights of a row with nothing to read 0.
        lse = (lse * LOG2_E).masked_fill_(lse < flash.DEAD, -BLOCKED)
        for index, rows in self._pieces(q, keep):
            sources = [x[index].flatten(0, 2).to(lse.dtype) for x in (g, q, k, v)]
            inner = (sources[0] * out[index].flatten(0, 2)).sum(-1)
            beside = torch.stack([lse[index].flatten(), inner], dim=-1)
            if dropout is not None:
                sources[0] = sources[0] * dropout.scale
            totals = [x[index].view_as(sources[0]) for x in gradients]
            for turn in range(self.rounds):
                g_sorted, queries, keys, values = (rows.sort(turn, name, x) for name, x in zip("gqkv", sources))
                sums, inner = rows.blocks(rows.sort(turn, "beside", beside)).split(1, dim=-1)
                weights = rows.scores(turn, queries, keys, scale).sub_(sums).exp2_()
                dscores = rows.multiply("dscores", rows.blocks(g_sorted), rows.windows(values).mT)
                if dropout is None:
                    dscores.sub_(inner).mul_(weights)
                else:
                    kept = dropout.kept(weights.shape, weights.dtype)
                    dscores.mul_(kept).sub_(inner).mul_(weights)
                    weights.mul_(kept)
                for number, total in enumerate(totals):
                    if number == 0:
                        gradient = rows.multiply("mixed", dscores, rows.windows(keys))
                    else:
                        gradient = rows.spread(*((dscores, queries) if number == 1 else (weights, g_sorted)))
                    if turn == 0:
                        rows.unsort(turn, gradient, out=total)
                    else:
                        again = rows.buffers("again", total.shape, total.dtype, total.device)
                        total += rows.unsort(turn, gradient, out=again)
        if scale != 1.0:
            for total in gradients[:2]:
                total.mul_(scale)
        dq, dk, dv = (total.to(q.dtype) for total in gradients)
        return dq, dk, dv

    def width(self, keys: int) -> int:
        return self.rounds * self.span

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * (queries * queries if self._whole(queries) else self._pairs(queries))

    def _pairs(self, queries: int) -> int:
        return self.rounds * ceil_div(queries, self.block) * self.block * self.span

    def _whole(self, queries: int) -> bool:
        """Whether all pairs of a text (half of them if causal) are fewer than those of its blocks."""
        return queries * queries <= min(PIECE, self._pairs(queries) * (2 if self.causal else 1))

    def small(self, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """Slots and `reads_self` as small integers; a key that `keep` hides is in no slot."""
        slots, reads_self = self.slot, self.reads_self
        if keep is not None:
            slots, reads_self = slots.masked_fill(~keep[:, None, None], HIDDEN_KEY), reads_self & keep[:, None]
        few = host_may_read(slots) and max(slots.shape[-1], int(slots.max())) <= 32000
        kind = torch.int16 if few else torch.int32
        return slots.to(kind), reads_self.to(kind)

    def _rows(self, keep: Tensor | None, count: int) -> "SortedRows":
        """The padded orders for `count` blocks: 0 for padding, and positions counted from 1."""
        length = self.order.shape[-1]
        slots, reads_self = self.small(keep)
        order = pad(self.order + 1, (self.back, count * self.block - length))
        index = torch.arange(length, device=order.device).expand_as(self.order)
        undo = torch.empty_like(self.order).scatter_(-1, self.order, index)
        # The slots of every round in the order of every round, and which token reads itself there.
        rounds = (*order.shape[:3], self.rounds, order.shape[3])
        slots = pad(slots, (1, 0), value=HIDDEN_KEY)[:, :, None].expand(*rounds[:4], -1)
        slots = slots.gather(-1, order[:, :, :, None].expand(rounds))
        reads_self = pad(reads_self, (1, 0))[:, :, None].expand(*rounds[:3], -1).gather(-1, order[..., self.back :])
        at: tuple[Tensor, ...] = ()
        if self.causal:
            positions = order.to(slots.dtype)
            at = of_keys(self, positions), of_queries(self, count, positions[..., self.back :])
        keys, queries = of_keys(self, slots), of_queries(self, count, reading(slots[..., self.back :]))
        without = (1 - reads_self).unflatten(-1, (count, self.block))
        return SortedRows(self, order, undo, keys, queries, without, at, count, Buffers())

    def _pieces(self, q: Tensor, keep: Tensor | None) -> Iterator[tuple[tuple[slice, slice], "SortedRows"]]:
        """Some sequences and heads at a time: as many as fit in cache."""
        rows = self._rows(keep, ceil_div(q.shape[2], self.block))
        for index in groups(q, PIECE // (2 * rows.count * self.block * self.span)):
            yield index, rows.take(index)
