"""Rounds of sorted blocks: each query reads the keys that stand in its own slot and in the one before."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention import flash
from longspan.attention.flash import BLOCKED
from longspan.attention.layouts.base import PIECE, Layout, ceil_div, products, wide

HIDDEN_KEY, HIDDEN_QUERY = -1, -3  # far enough apart that they never meet


@dataclass(frozen=True, eq=False)
class Sorted(Layout):
    """In every round the tokens are put in another order, and query i reads key j where slot_i - slot_j is 0, or 1.

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
    before: bool = True  # whether the slot before one's own is read too

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
                queries, keys, values = (rows.sort(turn, name, x) for name, x in zip("qkv", sources))
                part, part_lse = flash.forward(
                    rows.blocks(queries), rows.windows(keys), rows.windows(values), scale, mask=rows.mask(turn, q.dtype)
                )
                rows.unsort(turn, part, out=parts[turn])
                rows.unsort(turn, part_lse[..., None], out=sums[turn, :, None])
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
                towards, queries, keys, values, outs = (
                    rows.sort(turn, name, x) for name, x in zip(("g", "q", "k", "v", "out"), sources)
                )
                found = flash.backward(
                    rows.blocks(towards),
                    rows.blocks(queries),
                    rows.windows(keys),
                    rows.windows(values),
                    rows.blocks(outs),
                    rows.blocks(rows.sort(turn, "lse", sums))[..., 0],
                    scale,
                    mask=rows.mask(turn, q.dtype),
                )
                for total, part, fold in zip(totals, found, (False, True, True)):
                    if turn == 0:
                        rows.unsort(turn, part, out=total, fold=fold)
                    else:
                        again = rows.scratch("again", total.shape, total)
                        total += rows.unsort(turn, part, out=again, fold=fold)
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
        reading = slots[..., self.back :]
        reading = reading.masked_fill(reading < 0, HIDDEN_QUERY)
        own = pad(own, (1, 0)).to(small)[:, :, None].expand(*rounds[:3], -1).gather(-1, order[..., self.back :])
        readings = (reading, reading - 1) if self.before else (reading,)
        return _Rows(self, order, undo, slots, torch.stack(readings), 1 - own, count, _Scratch())

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
    slots: Tensor  # (…, rounds, rounds, back + count · block): of keys, in the order of the first, by the second
    reading: Tensor  # (1 or 2, …, rounds, rounds, count · block): the slots that queries read, likewise
    without: Tensor  # (…, rounds, count · block): 1 where a token does not read itself
    count: int
    scratch: _Scratch

    def take(self, index: tuple[int, slice]) -> "_Rows":
        order, undo, slots, without = (x[index] for x in (self.order, self.undo, self.slots, self.without))
        return _Rows(self.layout, order, undo, slots, self.reading[:, *index], without, self.count, self.scratch)

    # The fused way. It puts blocks before heads: the kernel then lays out the output of a single head as it is wanted.

    def sort(self, turn: int, name: str, x: Tensor) -> Tensor:
        """x (heads · length, width) in the order of a round; any row where nothing stands, as it is hidden."""
        found = self.scratch(name, (self._sources.shape[1], x.shape[1]), x)
        return torch.index_select(x, 0, self._sources[turn], out=found).unflatten(0, self.order.shape[::2])

    @cached_property
    def _sources(self) -> Tensor:
        """(rounds, heads · places): the row that stands at each sorted place, heads end to end."""
        return self._end_to_end((self.order - 1).clamp_min_(0), self.undo.shape[-1])

    def blocks(self, x: Tensor) -> Tensor:
        """(heads, back + count · block, width) -> (count, heads, block, width)"""
        return x[:, self.layout.back :].unflatten(1, (self.count, self.layout.block)).transpose(0, 1)

    def windows(self, x: Tensor) -> Tensor:
        """(heads, back + count · block, width) -> (count, heads, span, width), overlapping views"""
        return x.unfold(1, self.layout.span, self.layout.block).permute(1, 0, 3, 2)

    def unsort(self, turn: int, part: Tensor, *, out: Tensor, fold: bool = False) -> Tensor:
        """What came of blocks, or with `fold` of windows (which are added up, in place), by position."""
        if fold:
            self._fold(part)
        index = (self._folded if fold else self._places)[turn]
        return torch.index_select(part.transpose(0, 1).flatten(0, 2), 0, index, out=out)

    def _fold(self, part: Tensor) -> None:
        """Gradients of keys, (count, heads, span, width): what later windows found is added to a block's own window."""
        block, back = self.layout.block, self.layout.back
        for step in range(1, min(ceil_div(back, block), self.count - 1) + 1):
            first = max(0, step * block - back)  # the rows of a block that the window `step` blocks on reaches
            reached = part[step:, :, first + back - step * block : back - (step - 1) * block]
            part[:-step, :, back + first : back + block] += reached

    @cached_property
    def _places(self) -> Tensor:
        """(rounds, heads · length): where each position lies among the blocks, heads end to end."""
        return self._end_to_end(self.undo, self.count * self.layout.block)

    @cached_property
    def _folded(self) -> Tensor:
        """The same among the windows, each block lying at the end of its own."""
        block, back = self.layout.block, self.layout.back
        return self._end_to_end(self.undo + (self.undo // block + 1) * back, self.count * self.layout.span)

    def _end_to_end(self, index: Tensor, rows: int) -> Tensor:
        starts = torch.arange(index.shape[0], device=index.device) * rows
        return (index + starts[:, None, None]).transpose(0, 1).flatten(1)

    def mask(self, turn: int, dtype: torch.dtype) -> Tensor:
        """What is added to the scores: (count, heads, block, span)."""
        hidden = self.hidden(turn)
        mask = self.scratch("mask", hidden.shape, hidden.new_empty(0, dtype=wide(dtype)))
        return mask.copy_(hidden).mul_(BLOCKED).transpose(0, 1)

    # Both ways

    def hidden(self, turn: int) -> Tensor:
        """0 where a query reads a key in this round and 1 elsewhere, (…, count, block, span), small integers."""
        back = self.layout.back
        slots = self._keys(self.slots[..., turn, turn, :])
        hidden = self._compare(torch.ne, slots, self._queries(self.reading[0, ..., turn, turn, :]), "hidden")
        if self.layout.before:
            other = self._compare(torch.ne, slots, self._queries(self.reading[1, ..., turn, turn, :]), "other")
            hidden = hidden.bitwise_and_(other)
        if self.layout.causal:
            at = self.order[..., turn, :].to(hidden.dtype)
            later = self._compare(torch.ge, self._keys(at), self._queries(at[..., back:]), "other")
            hidden = hidden.bitwise_or_(later)
        without = self.without[..., turn, :].unflatten(-1, (self.count, self.layout.block))
        hidden.diagonal(back, dim1=-2, dim2=-1).copy_(without)
        for earlier in range(turn if self.layout.once else 0):  # shown there already
            slots = self._keys(self.slots[..., turn, earlier, :])
            for reading in self.reading[..., turn, earlier, :]:
                hidden = hidden.bitwise_or_(self._compare(torch.eq, slots, self._queries(reading), "other"))
        return hidden

    def _keys(self, x: Tensor) -> Tensor:
        """(…, count, 1, span)"""
        return x.unfold(-1, self.layout.span, self.layout.block).unsqueeze(-2)

    def _queries(self, x: Tensor) -> Tensor:
        """(…, count, block, 1)"""
        return x.unflatten(-1, (self.count, self.layout.block)).unsqueeze(-1)

    def _compare(self, how: Callable[..., Tensor], keys: Tensor, queries: Tensor, name: str) -> Tensor:
        """1 or 0 in the type of the operands: so torch compares ten times as fast as it does into booleans."""
        if torch.compiler.is_compiling():
            return how(keys, queries).to(keys.dtype)
        return how(keys, queries, out=self.scratch(name, (*queries.shape[:-1], self.layout.span), keys))


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """The rows `index` (batch, heads, rows) of x (batch, heads, length, width)."""
    return x.gather(2, index[..., None].expand(-1, -1, -1, x.shape[-1]))
