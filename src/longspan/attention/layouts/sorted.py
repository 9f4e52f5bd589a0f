"""Rounds of sorted blocks: each query reads the keys that stand in its own slot and in the one before."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention import flash
from longspan.attention.flash import BLOCKED
from longspan.attention.layouts.base import PIECE, Layout, ceil_div, products, wide

HIDDEN_KEY, HIDDEN_QUERY = -1, -3  # no slot, nor one before or behind it, so that they never meet


@dataclass(frozen=True, eq=False)
class Sorted(Layout):
    """In every round the tokens are put in another order, and query i reads key j where slot_i - slot_j is 0 or 1.

    Whoever sorts sees to it that such a key lies at most `back` places before the query's block of `block` sorted
    places, and none behind that block. A token's own key is read where `own` says so and not otherwise. With `once`
    a pair that several rounds show is read in the first of them, so that the rounds make one softmax over their union.
    """

    order: Tensor  # (batch, heads, rounds, length): the positions, sorted
    slot: Tensor  # (batch, heads, rounds, length): of each position, in any order; below 0: neither reads nor is read
    own: Tensor  # (batch, heads, length), boolean
    block: int
    back: int
    causal: bool = False  # reads earlier positions only
    once: bool = True

    @property
    def span(self) -> int:
        return self.back + self.block

    @property
    def rounds(self) -> int:
        return self.order.shape[2]

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        spare = 1  # exporters treat a size of 1 apart from all others
        rows = self._rows(keep, ceil_div(q.shape[2], self.block) + spare)
        filled_q, filled_k = (pad(x, (0, 0, 1, 0)) for x in (q, k))
        parts = []
        for turn in range(self.rounds):
            queries = rows.blocks(_pick(filled_q, rows.order[:, :, turn, self.back :]))
            found = products(queries, rows.windows(_pick(filled_k, rows.order[:, :, turn])), scale)
            found = found.masked_fill(rows.shown(turn) == 0, BLOCKED)
            parts.append(_pick(found.flatten(2, 3), rows.undo[:, :, turn]))
        return torch.cat(parts, dim=-1)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        rows = self._rows(None, ceil_div(v.shape[2], self.block) + 1)
        filled = pad(v, (0, 0, 1, 0))
        parts = []
        for turn, part in enumerate(weights.split(self.span, dim=-1)):
            sorted_weights = _pick(pad(part, (0, 0, 1, 0)), rows.order[:, :, turn, self.back :])
            mixed = rows.blocks(sorted_weights) @ rows.windows(_pick(filled, rows.order[:, :, turn]))
            parts.append(_pick(mixed.flatten(2, 3), rows.undo[:, :, turn]))
        return torch.stack(parts).sum(dim=0)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        width = q.shape[-1]
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=wide(q.dtype))
        for index, rows in self._pieces(q, keep):
            packed = _pack(q[index], k[index], v[index])
            parts, sums = [], []
            for turn in range(self.rounds):
                flat = packed.index_select(0, rows.flat(turn)).unflatten(0, rows.order.shape[::2])
                queries = rows.blocks(flat[:, self.back :, :width])
                keys, values = (rows.windows(x) for x in flat[..., width:].split(width, dim=-1))
                part, part_lse = flash.forward(
                    *(x.transpose(0, 1) for x in (queries, keys, values)), scale, mask=rows.mask(turn, q.dtype)
                )
                undo = rows.flat_undo(turn)
                parts.append(part.transpose(0, 1).flatten(0, 2).index_select(0, undo))
                sums.append(part_lse.transpose(0, 1).flatten().index_select(0, undo))
            total, merged = _merge(parts, sums)
            lse[index], out[index] = total.unflatten(0, rows.undo.shape[::2]), merged.view_as(out[index])
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
        width = q.shape[-1]
        gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for index, rows in self._pieces(q, keep):
            packed = _pack(q[index], k[index], v[index], g[index], out[index])
            sums = pad(lse[index], (1, 0)).flatten()
            total: Tensor | None = None
            for turn in range(self.rounds):
                flat = packed.index_select(0, rows.flat(turn)).unflatten(0, rows.order.shape[::2])
                queries, keys, values, towards, outs = flat.split(width, dim=-1)
                each = sums.index_select(0, rows.flat(turn)).view(*flat.shape[:2], 1)
                towards, queries, outs, each = (rows.blocks(x[:, self.back :]) for x in (towards, queries, outs, each))
                taken = (towards, queries, rows.windows(keys), rows.windows(values), outs, each[..., 0])
                found = flash.backward(
                    *(x.transpose(0, 1) for x in taken), scale, mask=rows.mask(turn, q.dtype)
                )
                folded = rows.fold(*(x.transpose(0, 1) for x in found)).flatten(0, 1).index_select(0, rows.flat_undo(turn, folded=True))
                total = folded if total is None else total.add_(folded)
            assert total is not None
            for gradient, part in zip(gradients, total.split(width, dim=-1)):
                gradient[index] = part.reshape(gradient[index].shape)
        return gradients

    def width(self, keys: int) -> int:
        return self.rounds * self.span

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * self.rounds * ceil_div(queries, self.block) * self.block * self.span

    def _rows(self, keep: Tensor | None, count: int) -> "_Rows":
        """The orders with their fillers, for `count` blocks: 0 stands for nothing, and positions begin at 1."""
        length, slots = self.order.shape[-1], self.slot
        own = self.own
        if keep is not None:
            slots, own = slots.masked_fill(~keep[:, None, None], HIDDEN_KEY), own & keep[:, None]
        order = pad(self.order + 1, (self.back, count * self.block - length))
        places = torch.arange(length, device=order.device).expand_as(self.order)
        undo = torch.empty_like(self.order).scatter_(-1, self.order, places)
        slots, own = pad(slots, (1, 0), value=HIDDEN_KEY), pad(own, (1, 0))
        small = torch.int32 if torch.compiler.is_compiling() or max(length, int(slots.max())) > 32000 else torch.int16
        return _Rows(self, order, undo, slots.to(small), own.to(small), count)

    def _pieces(self, q: Tensor, keep: Tensor | None) -> Iterator[tuple[tuple[int, slice], "_Rows"]]:
        """Some heads of one sequence at a time: as many as stay in cache."""
        batch, heads, length, _ = q.shape
        rows = self._rows(keep, ceil_div(length, self.block))
        together = max(1, PIECE // (rows.count * self.block * self.span))
        for row in range(batch):
            for head in range(0, heads, together):
                index = row, slice(head, head + together)
                yield index, rows.take(index)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The orders of some sequences and heads: leading sizes are (batch, heads) or (heads,)."""

    layout: Sorted
    order: Tensor  # (…, rounds, back + count · block): positions from 1 on, 0 for nothing
    undo: Tensor  # (…, rounds, length): the sorted place of each position
    slot: Tensor  # (…, rounds, 1 + length)
    own: Tensor  # (…, 1 + length)
    count: int

    def take(self, index: tuple[int, slice]) -> "_Rows":
        parts = (x[index] for x in (self.order, self.undo, self.slot, self.own))
        return _Rows(self.layout, *parts, self.count)

    def blocks(self, x: Tensor) -> Tensor:
        """(…, count · block, width) -> (…, count, block, width)"""
        return x.unflatten(-2, (self.count, self.layout.block))

    def windows(self, x: Tensor) -> Tensor:
        """(…, back + count · block, width) -> (…, count, span, width), overlapping views"""
        return x.unfold(-2, self.layout.span, self.layout.block).transpose(-1, -2)

    def flat(self, turn: int) -> Tensor:
        """Where the sorted rows of all heads lie, heads end to end with a row of nothing in front of each."""
        order = self.order[:, turn]
        starts = torch.arange(order.shape[0], device=order.device) * self.own.shape[-1]
        return (order + starts[:, None]).flatten()

    def flat_undo(self, turn: int, *, folded: bool = False) -> Tensor:
        """Where each position lies among the sorted rows, heads end to end; among folded rows, `back` lie in front."""
        undo, front = self.undo[:, turn], self.layout.back if folded else 0
        room = self._room if folded else self.count * self.layout.block
        starts = torch.arange(undo.shape[0], device=undo.device) * room + front
        return (undo + starts[:, None]).flatten()

    def shown(self, turn: int) -> Tensor:
        """1 where a query reads a key in this round and 0 elsewhere, (…, count, block, span), small integers."""
        back = self.layout.back
        order = self.order[..., turn, :]
        read = self._meet(turn, order)
        if self.layout.causal:
            at = order.to(self.slot.dtype)
            earlier = _compare(torch.lt, self._keys(at), self._queries(at[..., back:]))
            read = read.bitwise_and_(earlier)
        own = self.own.gather(-1, order[..., back:]).unflatten(-1, (self.count, self.layout.block))
        read.diagonal(back, dim1=-2, dim2=-1).copy_(own)
        for before in range(turn if self.layout.once else 0):
            read = read.gt_(self._meet(before, order))
        return read

    def mask(self, turn: int, dtype: torch.dtype) -> Tensor:
        """What is added to the scores: (count, heads, block, span).

        Blocks come first in the fused calls: the kernel then lays out a single head's output as it is wanted.
        """
        return self.shown(turn).sub_(1).to(wide(dtype)).mul_(-BLOCKED).transpose(0, 1)

    def fold(self, dq: Tensor, dk: Tensor, dv: Tensor) -> Tensor:
        """(heads, room, 3 · width): the gradients by sorted place, those of overlapping keys added up."""
        heads, count, block, width = dq.shape
        total = dq.new_zeros(heads, self._room, 3 * width)
        self.blocks(total[:, self.layout.back : self.layout.back + count * block, :width]).copy_(dq)
        for begin in range(0, self.layout.span, block):
            size = min(block, self.layout.span - begin)
            target = self.blocks(total[:, begin : begin + count * block])[:, :, :size]
            target[..., width : 2 * width] += dk[:, :, begin : begin + size]
            target[..., 2 * width :] += dv[:, :, begin : begin + size]
        return total

    @property
    def _room(self) -> int:
        """Rows for the keys of all blocks, a whole block for the last part of a span."""
        return (ceil_div(self.layout.span, self.layout.block) - 1 + self.count) * self.layout.block

    def _meet(self, turn: int, order: Tensor) -> Tensor:
        """1 where the slots of round `turn` let a query read a key, both taken in `order`."""
        slot = self.slot[..., turn, :].gather(-1, order)
        reading = slot[..., self.layout.back :]
        reading = self._queries(reading.masked_fill(reading < 0, HIDDEN_QUERY))
        keys = self._keys(slot)
        return _compare(torch.eq, keys, reading).bitwise_or_(_compare(torch.eq, keys, reading - 1))

    def _keys(self, x: Tensor) -> Tensor:
        return x.unfold(-1, self.layout.span, self.layout.block).unsqueeze(-2)

    def _queries(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.count, self.layout.block)).unsqueeze(-1)


def _compare(how, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[no-untyped-def]  # torch.eq or torch.lt
    """1 or 0 in the type of the operands: torch compares ten times as fast as it does into booleans."""
    if torch.compiler.is_compiling():
        return how(a, b).to(a.dtype)
    return how(a, b, out=a.new_empty(torch.broadcast_shapes(a.shape, b.shape)))


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """The rows `index` (batch, heads, rows) of x (batch, heads, length, width)."""
    return x.gather(2, index[..., None].expand(-1, -1, -1, x.shape[-1]))


def _pack(*parts: Tensor) -> Tensor:
    """Tensors (heads, length, width) side by side, a row of zeros in front of each head: one gather serves them all."""
    heads, length, width = parts[0].shape
    packed = parts[0].new_empty(heads, 1 + length, len(parts) * width)
    for i, part in enumerate(parts):
        packed[:, 1:, i * width : (i + 1) * width] = part
    packed[:, 0] = 0.0
    return packed.flatten(0, 1)


def _merge(parts: list[Tensor], sums: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The log-sum-exp over all rounds, and their outputs weighed by it."""
    each = torch.stack(sums)
    total = each.logsumexp(dim=0)
    weights = (each - total).exp_().to(parts[0].dtype)[..., None]
    merged = parts[0].mul_(weights[0])
    for part, weight in zip(parts[1:], weights[1:]):
        merged.addcmul_(part, weight)
    return total, merged
