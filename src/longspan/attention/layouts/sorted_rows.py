"""The sorted rows of a `Sorted` layout: their order, masks and products."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longspan.attention.buffers import Buffers
from longspan.attention.kernels.flash_dropout import BLOCKED, LOG2_E
from longspan.attention.layouts.base import ceil_div

if TYPE_CHECKING:
    from longspan.attention.layouts.sorted import Sorted

HIDDEN_KEY, HIDDEN_QUERY = -1, -3  # slots of hidden tokens, far enough apart never to match


@dataclass(frozen=True, eq=False)
class SortedRows:
    """The orders of some heads; leading sizes are (batch, heads) or, if fused, (heads of all sequences,)."""

    layout: "Sorted"
    order: Tensor  # (…, rounds, back + count · block): positions counted from 1, 0 for padding
    undo: Tensor  # (…, rounds, length): the sorted index of each position
    slots: Tensor  # (…, rounds, rounds, count, 1, span): keys in the first round's order, their slots in the second
    reading: Tensor  # (…, rounds, rounds, count, block, 1): the same for queries
    without: Tensor  # (…, rounds, count, block): 1 where a token does not read itself
    at: tuple[Tensor, ...]  # if causal, the positions of keys and of queries, shaped as the slots of one round
    count: int
    buffers: Buffers

    def take(self, index: tuple[slice, slice]) -> "SortedRows":
        names = ("order", "undo", "slots", "reading", "without")
        parts: dict[str, Any] = {name: getattr(self, name)[index].flatten(0, 1) for name in names}
        return replace(self, **parts, at=tuple(x[index].flatten(0, 1) for x in self.at))

    # Fused implementation

    def sort(self, turn: int, name: str, x: Tensor) -> Tensor:
        """x (heads · length, width) in the order of a round; padding holds arbitrary rows, as it is hidden."""
        rows = self.buffers(name, (self._sources.shape[1], x.shape[1]), x.dtype, x.device)
        return torch.index_select(x, 0, self._sources[turn], out=rows).view(*self.order.shape[::2], x.shape[1])

    @cached_property
    def _sources(self) -> Tensor:
        """(rounds, heads · sorted rows): the source of each sorted row; indices count through all heads."""
        return self._end_to_end((self.order - 1).clamp_min_(0), self.undo.shape[-1])

    def blocks(self, x: Tensor) -> Tensor:
        """(heads, back + count · block, width) -> (heads, count, block, width)"""
        blocks: Tensor = x[:, self.layout.back :].unflatten(1, (self.count, self.layout.block))
        return blocks

    def windows(self, x: Tensor) -> Tensor:
        """(heads, back + count · block, width) -> (heads, count, span, width), overlapping views"""
        return x.unfold(1, self.layout.span, self.layout.block).mT

    def unsort(self, turn: int, blocks: Tensor, *, out: Tensor) -> Tensor:
        """The rows of blocks, in the order of positions."""
        return torch.index_select(self._lanes_first(blocks).flatten(0, 2), 0, self._targets[turn], out=out)

    @cached_property
    def _targets(self) -> Tensor:
        """(rounds, heads · length): the index of each position among the rows of all lanes."""
        block, heads = self.layout.block, len(self.undo)
        if not self._across:
            return self._end_to_end(self.undo, self.count * block)
        return self._end_to_end(self.undo + self.undo // block * ((heads - 1) * block), block)

    def _end_to_end(self, index: Tensor, rows: int) -> Tensor:
        starts = torch.arange(index.shape[0], device=index.device) * rows
        return (index + starts[:, None, None]).transpose(0, 1).flatten(1)

    # `bmm` takes three dimensions, and merging two would copy the windows, so products go lane by lane: a lane is the
    # blocks of one head, or one block of all heads, whichever is longer.

    @cached_property
    def _across(self) -> bool:
        """Whether a lane is one block of all heads."""
        return self.count < len(self.order)

    def _lanes_first(self, x: Tensor) -> Tensor:
        """(heads, count, …), lanes first"""
        return x.transpose(0, 1) if self._across else x

    def _lanes(self, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        return zip(*(self._lanes_first(x) for x in tensors))

    def _buffer(self, name: str, a: Tensor, width: int) -> Tensor:
        """(heads, count, rows of a, width), with each lane contiguous."""
        shape = (*self._lanes_first(a).shape[:-1], width)
        return self._lanes_first(self.buffers(name, shape, a.dtype, a.device))

    def scores(self, turn: int, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
        """(heads, count, block, span), for base 2; the mask is the addend of the product, times `BLOCKED`."""
        blocks = self.blocks(queries)
        scores = self._buffer("weights", blocks, self.layout.span).copy_(self.hidden(turn))
        for lane, q, k in self._lanes(scores, blocks, self.windows(keys)):
            torch.baddbmm(lane, q, k.mT, beta=BLOCKED, alpha=scale * LOG2_E, out=lane)
        return scores

    def multiply(self, name: str, a: Tensor, b: Tensor) -> Tensor:
        """a @ b, in a reused buffer."""
        product = self._buffer(name, a, b.shape[-1])
        for lane, left, right in self._lanes(product, a, b):
            torch.bmm(left, right, out=lane)
        return product

    def spread(self, weights: Tensor, x: Tensor) -> Tensor:
        """Weighted rows x of each block, summed over the windows they belong to: (heads, count, block, width)."""
        block, back = self.layout.block, self.layout.back
        x = self.blocks(x)
        total = self.multiply("mixed", weights[..., back:].mT, x)
        for step in range(1, min(ceil_div(back, block), self.count - 1) + 1):
            first = max(0, step * block - back)  # the rows of a block that the window `step` blocks later reaches
            reached = weights[..., first + back - step * block : back - (step - 1) * block].mT
            for lane, left, right in self._lanes(total[:, :-step, first:], reached[:, step:], x[:, step:]):
                torch.baddbmm(lane, left, right, out=lane)
        return total

    # Both implementations

    def hidden(self, turn: int) -> Tensor:
        """0 where a query reads a key in this round and 1 elsewhere, (…, count, block, span), small integers."""
        back, furthest = self.layout.back, torch.iinfo(self.slots.dtype).min + self.layout.before
        hidden = self._steps(turn, turn, "hidden").gt_(furthest)
        if self.layout.causal:
            keys, queries = (x[..., turn, :, :, :] for x in self.at)
            hidden = hidden.bitwise_or_(self._combine(torch.ge, keys, queries, "other"))
        without = self.without[..., turn, :, :]
        if torch.compiler.is_exporting():  # ONNX has no views to write to
            rows, columns = (torch.arange(size, device=hidden.device) for size in hidden.shape[-2:])
            hidden = torch.where(columns == rows[:, None] + back, without[..., None].to(hidden.dtype), hidden)
        else:
            hidden.diagonal(back, dim1=-2, dim2=-1).copy_(without)
        if self.layout.once and turn:  # read in an earlier round
            least = self._steps(turn, 0, "least")
            for earlier in range(1, turn):
                least = torch.minimum(least, self._steps(turn, earlier, "other"), out=least)
            hidden = hidden.bitwise_or_(least.le_(furthest))
        return hidden

    def _steps(self, turn: int, other: int, name: str) -> Tensor:
        """A query's slot minus a key's, counted from the dtype's lowest integer, with negative ones after all others.

        One comparison then finds both slots that are read, and a minimum over rounds finds pairs of any round.
        """
        slots, reading = (x[..., turn, other, :, :, :] for x in (self.slots, self.reading))
        if torch.compiler.is_compiling():
            limits = torch.iinfo(slots.dtype)
            return (reading - slots).bitwise_and(limits.max) + limits.min
        return self._combine(torch.sub, reading, slots, name)  # `reading` starts at that integer, and wraps around

    def _combine(self, how: Callable[..., Tensor], a: Tensor, b: Tensor, name: str) -> Tensor:
        """The result in the operands' dtype: torch compares into it ten times as fast as into booleans."""
        if torch.compiler.is_compiling():
            return how(a, b).to(a.dtype)
        shape = (*a.shape[:-2], self.layout.block, self.layout.span)
        return how(a, b, out=self.buffers(name, shape, a.dtype, a.device))


def reading(slots: Tensor) -> Tensor:
    """The slots of queries as `SortedRows._steps` needs them; queries that read nothing match no key."""
    queries = slots.masked_fill(slots < 0, HIDDEN_QUERY)
    return queries if torch.compiler.is_compiling() else queries + torch.iinfo(slots.dtype).min


def of_keys(layout: "Sorted", x: Tensor) -> Tensor:
    """(…, back + count · block) -> (…, count, 1, span)"""
    return x.unfold(-1, layout.span, layout.block).unsqueeze(-2)


def of_queries(layout: "Sorted", count: int, x: Tensor) -> Tensor:
    """(…, count · block) -> (…, count, block, 1)"""
    blocks: Tensor = x.unflatten(-1, (count, layout.block))
    return blocks.unsqueeze(-1)
