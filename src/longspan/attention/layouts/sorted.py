"""Rounds of sorted blocks: each query reads the keys that stand in its own slot and in the one before."""

from collections.abc import Callable, Iterator, Sequence
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
        rows = self._rows(keep, self._count(q.shape[2]))
        parts = []
        for turn in range(self.rounds):
            order = rows.order[:, :, turn]
            found = products(self._blocks(q, order), self._windows(k, order), scale)
            found = found.masked_fill(rows.hidden(turn).bool(), BLOCKED)
            parts.append(_pick(found.flatten(2, 3), rows.undo[:, :, turn]))
        return torch.cat(parts, dim=-1)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        rows = self._rows(None, self._count(v.shape[2]))
        parts = []
        for turn, part in enumerate(weights.split(self.span, dim=-1)):
            order = rows.order[:, :, turn]
            mixed = self._blocks(part, order) @ self._windows(v, order)
            parts.append(_pick(mixed.flatten(2, 3), rows.undo[:, :, turn]))
        return torch.stack(parts).sum(dim=0)

    def _count(self, queries: int) -> int:
        """Blocks of the plain way: one to spare, because exporters treat a size of 1 apart from all others."""
        return ceil_div(queries, self.block) + 1

    def _blocks(self, x: Tensor, order: Tensor) -> Tensor:
        """(batch, heads, count, block, width): rows in their order, zeros where nothing stands."""
        sorted_rows = _pick(pad(x, (0, 0, 1, 0)), order[..., self.back :])
        return sorted_rows.unflatten(2, (self._count(x.shape[2]), self.block))

    def _windows(self, x: Tensor, order: Tensor) -> Tensor:
        """(batch, heads, count, span, width)"""
        return _pick(pad(x, (0, 0, 1, 0)), order).unfold(2, self.span, self.block).transpose(-1, -2)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=wide(q.dtype))
        for index, rows in self._pieces(q, keep):
            sources = [x[index].flatten(0, 1) for x in (q, k, v)]
            parts = rows.scratch("parts", (self.rounds, *sources[0].shape), q)
            sums = rows.scratch("sums", parts.shape[:2], lse)
            for turn in range(self.rounds):
                places = rows.index(turn)
                queries, keys, values = (rows.sort(places, name, x) for name, x in zip("qkv", sources))
                part, part_lse = flash.forward(
                    rows.blocks(queries), rows.windows(keys), rows.windows(values), scale, mask=rows.mask(turn, q.dtype)
                )
                undo = rows.flat_undo(turn)
                torch.index_select(part.transpose(0, 1).flatten(0, 2), 0, undo, out=parts[turn])
                torch.index_select(part_lse.transpose(0, 1).flatten(), 0, undo, out=sums[turn])
            # One softmax over all rounds: each weighs by its share of the whole sum.
            total = torch.logsumexp(sums, dim=0)
            weights = sums.sub_(total).exp_().to(q.dtype)[..., None]
            merged = torch.mul(parts[0], weights[0], out=out[index].view_as(parts[0]))
            for part, weight in zip(parts[1:], weights[1:]):
                merged.addcmul_(part, weight)
            lse[index] = total.view_as(lse[index])
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
        gradients = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        for index, rows in self._pieces(q, keep):
            sources = [x[index].flatten(0, 1) for x in (g, q, k, v, out)]
            sums = lse[index].reshape(-1, 1)
            totals = [x[index].view_as(sources[0]) for x in gradients]
            for turn in range(self.rounds):
                places = rows.index(turn)
                towards, queries, keys, values, outs = (
                    rows.sort(places, name, x) for name, x in zip(("g", "q", "k", "v", "out"), sources)
                )
                found = flash.backward(
                    rows.blocks(towards),
                    rows.blocks(queries),
                    rows.windows(keys),
                    rows.windows(values),
                    rows.blocks(outs),
                    rows.blocks(rows.sort(places, "lse", sums))[..., 0],
                    scale,
                    mask=rows.mask(turn, q.dtype),
                )
                folds = found[0].transpose(0, 1), rows.fold("dk", found[1]), rows.fold("dv", found[2])
                for total, fold, front in zip(totals, folds, (0, self.back, self.back)):
                    undo = rows.flat_undo(turn, front)
                    if turn == 0:
                        torch.index_select(fold.flatten(0, -2), 0, undo, out=total)
                    else:
                        again = rows.scratch("again", total.shape, total)
                        total += torch.index_select(fold.flatten(0, -2), 0, undo, out=again)
        return gradients

    def width(self, keys: int) -> int:
        return self.rounds * self.span

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * self.rounds * ceil_div(queries, self.block) * self.block * self.span

    def _rows(self, keep: Tensor | None, count: int) -> "_Rows":
        """The orders with their fillers, for `count` blocks: 0 stands for nothing, and positions begin at 1."""
        length, slots, own = self.order.shape[-1], self.slot, self.own
        if keep is not None:
            slots, own = slots.masked_fill(~keep[:, None, None], HIDDEN_KEY), own & keep[:, None]
        order = pad(self.order + 1, (self.back, count * self.block - length))
        places = torch.arange(length, device=order.device).expand_as(self.order)
        undo = torch.empty_like(self.order).scatter_(-1, self.order, places)
        small = torch.int32 if torch.compiler.is_compiling() or max(length, int(slots.max())) > 32000 else torch.int16
        # The slots of every round in the order of every round, and which token reads itself there.
        rounds = (*order.shape[:3], self.rounds, order.shape[3])
        slots = pad(slots, (1, 0), value=HIDDEN_KEY).to(small)[:, :, None].expand(*rounds[:4], -1)
        slots = slots.gather(-1, order[:, :, :, None].expand(rounds))
        own = pad(own, (1, 0)).to(small)[:, :, None].expand(*rounds[:3], -1).gather(-1, order[..., self.back :])
        return _Rows(self, order, undo, slots, own, count, _Scratch())

    def _pieces(self, q: Tensor, keep: Tensor | None) -> Iterator[tuple[tuple[int, slice], "_Rows"]]:
        """Some heads of one sequence at a time: as many as stay in cache."""
        batch, heads, length, _ = q.shape
        rows = self._rows(keep, ceil_div(length, self.block))
        together = max(1, PIECE // (2 * rows.count * self.block * self.span))
        for row in range(batch):
            for head in range(0, heads, together):
                index = row, slice(head, head + together)
                yield index, rows.take(index)


class _Scratch:
    """Tensors that a loop fills again and again: memory fresh from the system costs more than the arithmetic."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is None or kept.shape != torch.Size(shape):
            kept = self._kept[name] = like.new_empty(shape)
        return kept


@dataclass(frozen=True, eq=False)
class _Rows:
    """The orders of some sequences and heads: leading sizes are (batch, heads) or, in the fused way, (heads,)."""

    layout: Sorted
    order: Tensor  # (…, rounds, back + count · block): positions from 1 on, 0 for nothing
    undo: Tensor  # (…, rounds, length): the sorted place of each position
    slots: Tensor  # (…, rounds, rounds, back + count · block): in the order of the first, by the second
    own: Tensor  # (…, rounds, count · block)
    count: int
    scratch: _Scratch

    def take(self, index: tuple[int, slice]) -> "_Rows":
        parts = (x[index] for x in (self.order, self.undo, self.slots, self.own))
        return _Rows(self.layout, *parts, self.count, self.scratch)

    # The fused way puts blocks before heads: the kernel then lays out the output of a single head as it is wanted.

    def index(self, turn: int) -> Tensor:
        """Where the sorted rows lie, heads end to end; any row where nothing stands, as it is hidden."""
        order = self.order[:, turn]
        starts = torch.arange(order.shape[0], device=order.device) * self.undo.shape[-1]
        return ((order - 1).clamp_min_(0) + starts[:, None]).flatten()

    def sort(self, index: Tensor, name: str, x: Tensor) -> Tensor:
        """The rows `index` of x (heads · length, width)."""
        found = self.scratch(name, (index.shape[0], x.shape[1]), x)
        return torch.index_select(x, 0, index, out=found).unflatten(0, self.order.shape[::2])

    def blocks(self, x: Tensor) -> Tensor:
        """(heads, back + count · block, width) -> (count, heads, block, width)"""
        return x[:, self.layout.back :].unflatten(1, (self.count, self.layout.block)).transpose(0, 1)

    def windows(self, x: Tensor) -> Tensor:
        """(heads, back + count · block, width) -> (count, heads, span, width), overlapping views"""
        return x.unfold(1, self.layout.span, self.layout.block).permute(1, 0, 3, 2)

    def mask(self, turn: int, dtype: torch.dtype) -> Tensor:
        """What is added to the scores: (count, heads, block, span)."""
        hidden = self.hidden(turn)
        mask = self.scratch("mask", hidden.shape, hidden.new_empty(0, dtype=wide(dtype)))
        return mask.copy_(hidden).mul_(BLOCKED).transpose(0, 1)

    def fold(self, name: str, part: Tensor) -> Tensor:
        """Gradients (count, heads, span, width) by sorted place, those of overlapping windows added up."""
        block, span, count = self.layout.block, self.layout.span, self.count
        heads, width = part.shape[1], part.shape[3]
        room = (ceil_div(span, block) - 1 + count) * block
        total = self.scratch(name, (heads, room, width), part).zero_()
        for begin in range(0, span, block):
            target = total[:, begin : begin + count * block].unflatten(1, (count, block)).transpose(0, 1)
            piece = part[:, :, begin : begin + block]
            target[:, :, : piece.shape[2]] += piece
        return total

    def flat_undo(self, turn: int, front: int = 0) -> Tensor:
        """Where each position lies among the sorted rows, heads end to end; of folded rows, `front` lie before."""
        undo, block = self.undo[:, turn], self.layout.block
        room = (ceil_div(self.layout.span, block) - 1 + self.count) * block if front else self.count * block
        starts = torch.arange(undo.shape[0], device=undo.device) * room + front
        return (undo + starts[:, None]).flatten()

    def hidden(self, turn: int) -> Tensor:
        """0 where a query reads a key in this round and 1 elsewhere, (…, count, block, span), small integers."""
        back = self.layout.back
        keys, (own, before) = self._slots(turn, turn)
        hidden = self._compare(torch.ne, keys, own, "hidden")
        hidden = hidden.bitwise_and_(self._compare(torch.ne, keys, before, "other"))
        if self.layout.causal:
            at = self.order[..., turn, :].to(hidden.dtype)
            later = self._compare(torch.ge, self._keys(at), self._queries(at[..., back:]), "other")
            hidden = hidden.bitwise_or_(later)
        itself = self.own[..., turn, :].unflatten(-1, (self.count, self.layout.block))
        hidden.diagonal(back, dim1=-2, dim2=-1).copy_(1 - itself)
        for earlier in range(turn if self.layout.once else 0):  # shown there already
            keys, slots = self._slots(turn, earlier)
            for slot in slots:
                hidden = hidden.bitwise_or_(self._compare(torch.eq, keys, slot, "other"))
        return hidden

    def _slots(self, turn: int, by: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The slots of the keys, and the two that each query reads: those of round `by` in the order of `turn`."""
        slot = self.slots[..., turn, by, :]
        reading = slot[..., self.layout.back :]
        reading = self._queries(reading.masked_fill(reading < 0, HIDDEN_QUERY))
        return self._keys(slot), (reading, reading - 1)

    def _keys(self, x: Tensor) -> Tensor:
        return x.unfold(-1, self.layout.span, self.layout.block).unsqueeze(-2)

    def _queries(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.count, self.layout.block)).unsqueeze(-1)

    def _compare(self, how: Callable[..., Tensor], a: Tensor, b: Tensor, name: str) -> Tensor:
        """1 or 0 in the type of the operands: so torch compares ten times as fast as it does into booleans."""
        if torch.compiler.is_compiling():
            return how(a, b).to(a.dtype)
        return how(a, b, out=self.scratch(name, torch.broadcast_shapes(a.shape, b.shape), a))


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """The rows `index` (batch, heads, rows) of x (batch, heads, length, width)."""
    return x.gather(2, index[..., None].expand(-1, -1, -1, x.shape[-1]))
