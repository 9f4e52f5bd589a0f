"""The rows of a `Sorted` layout in their orders: how they are laid out, masked, and multiplied in its fused way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longspan.attention.kernels.flash_dropout import BLOCKED, LOG2_E
from longspan.attention.layouts.base import ceil_div

if TYPE_CHECKING:
    from longspan.attention.layouts.sorted import Sorted

HIDDEN_KEY, HIDDEN_QUERY = -1, -3  # far enough apart that they never meet


class Scratch:
    """Tensors that a loop fills again and again: memory fresh from the system costs more than the arithmetic."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is None or kept.shape != torch.Size(shape):
            kept = self._kept[name] = like.new_empty(shape)
        return kept


@dataclass(frozen=True, eq=False)
class SortedRows:
    """The orders of some heads: leading sizes are (batch, heads) or, in the fused way, (heads of all sequences,)."""

    layout: "Sorted"
    order: Tensor  # (…, rounds, back + count · block): positions from 1 on, 0 for nothing
    undo: Tensor  # (…, rounds, length): the sorted place of each position
    slots: Tensor  # (…, rounds, rounds, count, 1, span): of keys, in the order of the first, by the second
    reading: Tensor  # (…, rounds, rounds, count, block, 1): of queries, likewise
    without: Tensor  # (…, rounds, count, block): 1 where a token does not read itself
    at: tuple[Tensor, ...]  # if causal, the positions of keys and of queries, shaped as the slots of one round
    count: int
    scratch: Scratch

    def take(self, index: tuple[slice, slice]) -> "SortedRows":
        names = ("order", "undo", "slots", "reading", "without")
        parts: dict[str, Any] = {name: getattr(self, name)[index].flatten(0, 1) for name in names}
        return replace(self, **parts, at=tuple(x[index].flatten(0, 1) for x in self.at))

    # The fused way

    def sort(self, turn: int, name: str, x: Tensor) -> Tensor:
        """x (heads · length, width) in the order of a round; any row where nothing stands, as it is hidden."""
        found = self.scratch(name, (self._sources.shape[1], x.shape[1]), x)
        return torch.index_select(x, 0, self._sources[turn], out=found).unflatten(0, self.order.shape[::2])

    @cached_property
    def _sources(self) -> Tensor:
        """(rounds, heads · places): the row that stands at each sorted place, heads end to end."""
        return self._end_to_end((self.order - 1).clamp_min_(0), self.undo.shape[-1])

    def blocks(self, x: Tensor) -> Tensor:
        """(heads, back + count · block, width) -> (heads, count, block, width)"""
        return x[:, self.layout.back :].unflatten(1, (self.count, self.layout.block))

    def windows(self, x: Tensor) -> Tensor:
        """(heads, back + count · block, width) -> (heads, count, span, width), overlapping views"""
        return x.unfold(1, self.layout.span, self.layout.block).mT

    def unsort(self, turn: int, part: Tensor, *, out: Tensor) -> Tensor:
        """What came of blocks, by position."""
        return torch.index_select(self._turn(part).flatten(0, 2), 0, self._places[turn], out=out)

    @cached_property
    def _places(self) -> Tensor:
        """(rounds, heads · length): where each position lies among the blocks, heads end to end, or blocks."""
        block, heads = self.layout.block, len(self.undo)
        if not self._across:
            return self._end_to_end(self.undo, self.count * block)
        return self._end_to_end(self.undo + self.undo // block * ((heads - 1) * block), block)

    def _end_to_end(self, index: Tensor, rows: int) -> Tensor:
        starts = torch.arange(index.shape[0], device=index.device) * rows
        return (index + starts[:, None, None]).transpose(0, 1).flatten(1)

    # Batched products take three dimensions, and merging two would copy the windows, so they go in lanes: the blocks of
    # one head, or one block of all heads, whichever are the longer lanes.

    @cached_property
    def _across(self) -> bool:
        """Whether a lane is a block of all heads."""
        return self.count < len(self.order)

    def _turn(self, x: Tensor) -> Tensor:
        """(heads, count, …), lanes first"""
        return x.transpose(0, 1) if self._across else x

    def _lanes(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        return zip(*(self._turn(x) for x in tensors))

    def _room(self, name: str, a: Tensor, width: int) -> Tensor:
        """(heads, count, rows of a, width), each lane in one stretch of memory."""
        return self._turn(self.scratch(name, (*self._turn(a).shape[:-1], width), a))

    def scores(self, turn: int, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        """(heads, count, block, span), for base 2; what is hidden comes in as the product's addend, times `BLOCKED`."""
        blocks = self.blocks(queries)
        scores = self._room("weights", blocks, self.layout.span).copy_(self.hidden(turn))
        for own, q, k in self._lanes(scores, blocks, self.windows(keys)):
            torch.baddbmm(own, q, k.mT, beta=BLOCKED, alpha=scale * LOG2_E, out=own)
        return scores

    def multiply(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        found = self._room(name, a, b.shape[-1])
        for own, left, right in self._lanes(found, a, b):
            torch.bmm(left, right, out=own)
        return found

    def spread(self, weights: Tensor, x: Tensor) -> Tensor:
        """What the rows x of each block give to its window under weights, added up: (heads, count, block, width)."""
        block, back = self.layout.block, self.layout.back
        x = self.blocks(x)
        found = self.multiply("mixed", weights[..., back:].mT, x)
        for step in range(1, min(ceil_div(back, block), self.count - 1) + 1):
            first = max(0, step * block - back)  # the rows of a block that the window `step` blocks on reaches
            reached = weights[..., first + back - step * block : back - (step - 1) * block].mT
            for own, left, right in self._lanes(found[:, :-step, first:], reached[:, step:], x[:, step:]):
                torch.baddbmm(own, left, right, out=own)
        return found

    # Both ways

    def hidden(self, turn: int) -> Tensor:
        """0 where a query reads a key in this round and 1 elsewhere, (…, count, block, span), small integers."""
        back, furthest = self.layout.back, torch.iinfo(self.slots.dtype).min + self.layout.before
        hidden = self._steps(turn, turn, "hidden").gt_(furthest)
        if self.layout.causal:
            keys, queries = (x[..., turn, :, :, :] for x in self.at)
            hidden = hidden.bitwise_or_(self._combine(torch.ge, keys, queries, "other"))
        hidden.diagonal(back, dim1=-2, dim2=-1).copy_(self.without[..., turn, :, :])
        if self.layout.once and turn:  # shown in an earlier round
            least = self._steps(turn, 0, "least")
            for earlier in range(1, turn):
                least = torch.minimum(least, self._steps(turn, earlier, "other"), out=least)
            hidden = hidden.bitwise_or_(least.le_(furthest))
        return hidden

    def _steps(self, turn: int, other: int, name: str) -> Tensor:
        """A query's slot less a key's, negative ones behind all others, from the least integer of the type on.

        So one comparison finds both slots that are read, and a minimum those that any round reads.
        """
        slots, reading = (x[..., turn, other, :, :, :] for x in (self.slots, self.reading))
        if torch.compiler.is_compiling():
            limits = torch.iinfo(slots.dtype)
            return (reading - slots).bitwise_and(limits.max) + limits.min
        return self._combine(torch.sub, reading, slots, name)  # `reading` begins at that integer, and wraps around

    def _combine(self, how: Callable[..., Tensor], a: Tensor, b: Tensor, name: str) -> Tensor:
        """In the type of the operands: so torch compares ten times as fast as it does into booleans."""
        if torch.compiler.is_compiling():
            return how(a, b).to(a.dtype)
        return how(a, b, out=self.scratch(name, (*a.shape[:-2], self.layout.block, self.layout.span), a))


def reading(slots: Tensor) -> Tensor:
    """The slots of queries, as `Rows._steps` takes them: those that read nothing far from all keys."""
    found = slots.masked_fill(slots < 0, HIDDEN_QUERY)
    return found if torch.compiler.is_compiling() else found + torch.iinfo(slots.dtype).min


def of_keys(layout: "Sorted", x: Tensor) -> Tensor:
    """(…, back + count · block) -> (…, count, 1, span)"""
    return x.unfold(-1, layout.span, layout.block).unsqueeze(-2)


def of_queries(layout: "Sorted", count: int, x: Tensor) -> Tensor:
    """(…, count · block) -> (…, count, block, 1)"""
    return x.unflatten(-1, (count, layout.block)).unsqueeze(-1)
