"""Chunks in a ring, as in Reformer's released code: the first chunk reads the last one.

In the release every token reads all tokens of its own chunk and of some chunks before and after it, found by rolling
the list of all chunks. So the first chunk reads the last one. Several rounds of sorting form one list of chunks, and
the first chunk of a round reads the last of the round before. A token that is in several chunks of a window is read,
and counted, several times. No paper defines this, and the amount of padding changes it: this layout exists so that
models trained with the release reproduce their outputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.devices import host_may_read
from longspan.attention.kernels import flash
from longspan.attention.kernels.flash_dropout import BLOCKED
from longspan.attention.layouts.base import PIECE, Layout, ceil_div, groups, products, wide


@dataclass(frozen=True, eq=False)
class Ring(Layout):
    """Each round sorts all positions and cuts them into chunks; a chunk reads itself and its neighbours on the ring."""

    order: Tensor  # (batch, heads, rounds, length): the positions, sorted
    chunk: int
    before: int = 1
    after: int = 0
    causal: bool = False
    alone: bool = False  # whether a token reads its own key only if it can read no other

    @property
    def span(self) -> int:
        """Keys of a query in each round; a text of one chunk has no neighbours and needs one round."""
        return self.chunk * len(self._shifts)

    @property
    def _shifts(self) -> range:
        """How far the list of chunks is rolled for each chunk of a window."""
        return range(1) if self.order.shape[-1] <= self.chunk else range(self.before, -self.after - 1, -1)

    @property
    def _rounds(self) -> int:
        return 1 if self.order.shape[-1] <= self.chunk else self.order.shape[2]

    def width(self, keys: int) -> int:
        return self._rounds * self.span

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * self._rounds * ceil_div(queries, self.chunk) * self.chunk * self.span

    def of_heads(self, heads: slice) -> Layout:
        return replace(self, order=self.order[:, heads])

    # Indices

    @cached_property
    def _sorted_positions(self) -> Tensor:
        """(batch, heads, rounds, padded length): the positions, sorted, in whole chunks; -1 for padding."""
        order = self.order[:, :, : self._rounds]
        length = order.shape[-1]
        return pad(order, (0, ceil_div(length, self.chunk) * self.chunk - length), value=-1)

    @cached_property
    def _undo(self) -> Tensor:
        """(batch, heads, rounds, length): the index of each position in the sorted list of all rounds."""
        order, padded = self.order[:, :, : self._rounds], self._sorted_positions.shape[-1]
        at = torch.arange(self._rounds * padded, device=order.device).view(self._rounds, padded)[:, : order.shape[-1]]
        return torch.empty_like(order).scatter_(-1, order, at.expand_as(order))

    def _chunks(self, x: Tensor) -> Tensor:
        """(batch, heads, chunks of all rounds, chunk, …) of sorted rows (batch, heads, rounds · padded length, …)."""
        chunks: Tensor = x.unflatten(2, (-1, self.chunk))
        return chunks

    def _windows(self, chunks: Tensor) -> Tensor:
        """(batch, heads, chunks of all rounds, span, …)"""
        return chunks if len(self._shifts) == 1 else torch.cat([chunks.roll(shift, 2) for shift in self._shifts], 3)

    def _spread(self, windows: Tensor) -> Tensor:
        """The sum, for each sorted row, over the windows that contain it: the gradient of `_windows`."""
        by_shift: tuple[Tensor, ...] = windows.split(self.chunk, 3)
        rolled = [chunks.roll(-shift, 2) for chunks, shift in zip(by_shift, self._shifts, strict=True)]
        return reduce(torch.add, rolled).flatten(2, 3)

    def _hidden(self, keep: Tensor | None, dtype: torch.dtype, at: tuple[slice, slice]) -> Tensor | None:
        """(batch, heads, chunks, chunk, span): True for keys that a query may not read; None if it may read all."""
        order, undo = self._sorted_positions[at], self._undo[at]
        padding = order < 0
        if keep is not None:
            real = keep[at[0], None, None].expand(*order.shape[:3], -1)
            padding = padding | ~real.gather(-1, order.clamp_min(0))
        position = self._chunks(order.flatten(2)).to(dtype)
        keys = self._windows(position.masked_fill(self._chunks(padding.flatten(2)), torch.inf))[:, :, :, None]
        excluded = torch.full_like(position, -1)  # the query's own key if it may not be read, else -1
        if self.alone:
            # Another key is readable if the first or the last readable one is another, in any round.
            least, most = keys.amin(-1), keys.masked_fill(keys.isinf(), -1).amax(-1)
            others = (least < position) if self.causal else (least < position) | (most > position)
            others = others.flatten(2, 3).gather(2, undo.flatten(2)).unflatten(2, (self._rounds, -1)).any(2)
            others = others[:, :, None].expand(*order.shape[:3], -1).gather(-1, order.clamp_min(0))
            excluded = torch.where(self._chunks(others.flatten(2)), position, -1.0)
        if self.causal:  # earlier keys, and its own unless it is excluded
            return torch.where(excluded >= 0, position, position + 0.5)[..., None] <= keys
        if self.alone:
            return (keys == excluded[..., None]) | keys.isinf()
        if host_may_read(padding) and not bool(padding.any()):
            return None
        return keys.isinf().expand(*position.shape, -1)

    # Plain implementation

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        blocks, windows = self._chunks(self._sort(q)), self._windows(self._chunks(self._sort(k)))
        scores, hidden = products(blocks, windows, scale), self._hidden(keep, wide(q.dtype), _ALL)
        if hidden is not None:
            scores = scores.masked_fill(hidden, BLOCKED)
        return self._unsort(scores.flatten(2, 3)).transpose(2, 3).flatten(3)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        rounds = weights.unflatten(-1, (self._rounds, self.span)).transpose(2, 3)
        padded = self._sorted_positions.shape[-1]
        index = self._sorted_positions.clamp_min(0)[..., None].expand(-1, -1, -1, -1, self.span)
        blocks = rounds.gather(3, index).masked_fill((self._sorted_positions < 0)[..., None], 0.0)
        blocks = blocks.reshape(*blocks.shape[:2], self._rounds * padded, self.span)
        mixed = self._chunks(blocks) @ self._windows(self._chunks(self._sort(v)))
        return self._unsort(mixed.flatten(2, 3)).sum(2)

    def _sort(self, x: Tensor) -> Tensor:
        """(batch, heads, rounds · padded length, width); padding holds arbitrary rows."""
        index = self._sorted_positions.clamp_min(0).flatten(2)[..., None]
        return x.gather(2, index.expand(*x.shape[:2], -1, x.shape[-1]))

    def _unsort(self, x: Tensor) -> Tensor:
        """(batch, heads, rounds, length, width)"""
        index = self._undo.flatten(2)[..., None].expand(*x.shape[:2], -1, x.shape[-1])
        rounds: Tensor = x.gather(2, index).unflatten(2, (self._rounds, -1))
        return rounds

    # Fused implementation

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=wide(q.dtype))
        for at, rows, mask in self._pieces(q, keep):
            blocks, keys, values = (self._chunks(rows.sort(x[at])) for x in (q, k, v))
            sorted_out, sums = flash.forward(blocks.flatten(0, 1), *self._read(keys, values), scale, mask=mask)
            parts, sums = rows.unsort(sorted_out.flatten(0, 2)), rows.unsort(sums.flatten()[:, None])[..., 0]
            lse[at] = total = sums.logsumexp(2)
            shares = (sums - total[:, :, None]).exp().to(q.dtype)
            out[at] = parts.mul_(shares[..., None]).sum(2)
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
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        for at, rows, mask in self._pieces(q, keep):
            g_sorted = rows.sort(g[at]).masked_fill_((self._sorted_positions[at] < 0).flatten(2)[..., None], 0.0)
            of_queries = (g_sorted, *(rows.sort(x[at]) for x in (q, out)), rows.sort(lse[at][..., None]))
            g_blocks, queries, outs, sums = (self._chunks(x).flatten(0, 1) for x in of_queries)
            keys, values = self._read(*(self._chunks(rows.sort(x[at])) for x in (k, v)))
            dqueries, dkeys, dvalues = flash.backward(
                g_blocks, queries, keys, values, outs, sums[..., 0], scale, mask=mask
            )
            heads = dq[at].shape[:2]
            dq[at] = rows.unsort(dqueries.flatten(0, 2)).sum(2)
            for gradient, windows in ((dk, dkeys), (dv, dvalues)):
                gradient[at] = rows.unsort(self._spread(windows.unflatten(0, heads)).flatten(0, 2)).sum(2)
        return dq, dk, dv

    def _read(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The windows of both, with chunks as the kernel's heads."""
        return self._windows(keys).flatten(0, 1), self._windows(values).flatten(0, 1)

    def _pieces(
        self, q: Tensor, keep: Tensor | None
    ) -> Iterator[tuple[tuple[slice, slice], "_SortIndex", Tensor | None]]:
        """Some sequences and heads at a time: their index, their rows, and the mask to add to their scores."""
        for at in groups(q, PIECE // (self._sorted_positions.shape[-1] * self.width(q.shape[2]))):
            hidden = self._hidden(keep, wide(q.dtype), at)
            mask = None if hidden is None else hidden.flatten(0, 1).to(wide(q.dtype)).mul_(BLOCKED)
            yield at, _SortIndex.of(self._sorted_positions[at], self._undo[at]), mask


@dataclass(frozen=True)
class _SortIndex:
    """Sorts the rows of some sequences and heads, and undoes it; indices count through all of these heads."""

    source: Tensor  # the source row of each sorted row
    undo: Tensor
    shape: torch.Size  # (batch, heads, rounds, length)

    @classmethod
    def of(cls, order: Tensor, undo: Tensor) -> "_SortIndex":
        first = torch.arange(order.shape[:2].numel(), device=order.device).view(*order.shape[:2], 1, 1)
        padded = order.shape[2:].numel()
        return cls(
            (order.clamp_min(0) + first * undo.shape[-1]).flatten(), (undo + first * padded).flatten(), undo.shape
        )

    def sort(self, x: Tensor) -> Tensor:
        """(batch, heads, rounds · padded length, width) of (batch, heads, length, width)"""
        return x.flatten(0, 2).index_select(0, self.source).view(*x.shape[:2], -1, x.shape[-1])

    def unsort(self, x: Tensor) -> Tensor:
        """(batch, heads, rounds, length, width) of (all sorted rows, width)"""
        return x.index_select(0, self.undo).view(*self.shape, x.shape[-1])


_ALL = (slice(None), slice(None))


def shown_in_ring(order: Tensor, chunk: int, before: int, after: int) -> Tensor:
    """How often each query reads each key, (batch, heads, length, length): the definition, by comparing chunks."""
    rounds, length = order.shape[2:]
    if length <= chunk:
        return torch.ones(*order.shape[:2], length, length, dtype=torch.long, device=order.device)
    chunks = ceil_div(length, chunk)
    turn = torch.arange(rounds, device=order.device)[:, None] * chunks
    index = order.argsort(dim=-1) // chunk + turn  # each position's chunk on the ring of all rounds
    step = index[:, :, :, None, :, None] - index[:, :, None, :, None, :]
    count = torch.zeros_like(step)
    for look in range(-after, before + 1):
        count += (step - look) % (rounds * chunks) == 0
    return count.sum(dim=(2, 3))


__all__ = ["Ring", "shown_in_ring"]
