"""Chunks in a ring, as Reformer's released code has them: before the first chunk stands the last one.

In the release every token of a chunk reads all tokens of its own chunk and of some before and behind it, found by
turning the list of all chunks. So the first chunk reads the last; where there are several rounds of sorting, their
chunks are one list, and the first of a round reads the last of the round before. What several chunks of a window hold
is read, and counted, several times. No paper defines this, and the amount of padding changes it: it is here so that
models trained that way give the numbers they were trained to give.
"""

from collections.abc import Iterator
from dataclasses import dataclass
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
    """Rounds of orders of all positions, cut into chunks; each chunk reads itself and its neighbours on the ring."""

    order: Tensor  # (batch, heads, rounds, length): the positions, sorted
    chunk: int
    before: int = 1
    after: int = 0
    causal: bool = False
    alone: bool = False  # whether a token's own key is read only where there is no other

    @property
    def span(self) -> int:
        """Keys of a query in each round; a text of one chunk has no neighbours, and one round of it is all."""
        return self.chunk * len(self._shifts)

    @property
    def _shifts(self) -> range:
        """By how much the list of chunks is turned for each part of a window."""
        return range(1) if self.order.shape[-1] <= self.chunk else range(self.before, -self.after - 1, -1)

    @property
    def _rounds(self) -> int:
        return 1 if self.order.shape[-1] <= self.chunk else self.order.shape[2]

    def width(self, keys: int) -> int:
        return self._rounds * self.span

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * self._rounds * ceil_div(queries, self.chunk) * self.chunk * self.span

    # Where everything stands

    @cached_property
    def _places(self) -> Tensor:
        """(batch, heads, rounds, room): the positions, sorted, in whole chunks; -1 where nothing stands."""
        order = self.order[:, :, : self._rounds]
        length = order.shape[-1]
        return pad(order, (0, ceil_div(length, self.chunk) * self.chunk - length), value=-1)

    @cached_property
    def _undo(self) -> Tensor:
        """(batch, heads, rounds, length): where in the sorted list of all rounds each position stands."""
        order, room = self.order[:, :, : self._rounds], self._places.shape[-1]
        at = torch.arange(self._rounds * room, device=order.device).view(self._rounds, room)[:, : order.shape[-1]]
        return torch.empty_like(order).scatter_(-1, order, at.expand_as(order))

    def _chunks(self, x: Tensor) -> Tensor:
        """(batch, heads, chunks of all rounds, chunk, …): what is sorted, (batch, heads, rounds · room, …)."""
        return x.unflatten(2, (-1, self.chunk))

    def _windows(self, chunks: Tensor) -> Tensor:
        """(batch, heads, chunks of all rounds, span, …)"""
        return chunks if len(self._shifts) == 1 else torch.cat([chunks.roll(shift, 2) for shift in self._shifts], 3)

    def _spread(self, windows: Tensor) -> Tensor:
        """The sum, for each sorted place, over the windows that hold it: the gradient of `_windows`."""
        parts = [part.roll(-shift, 2) for part, shift in zip(windows.split(self.chunk, 3), self._shifts, strict=True)]
        return reduce(torch.add, parts).flatten(2, 3)

    def _hidden(self, keep: Tensor | None, dtype: torch.dtype, at: tuple[slice, slice]) -> Tensor | None:
        """(batch, heads, chunks, chunk, span): 1 for keys that a query may not read; None: it may read all."""
        places, undo = self._places[at], self._undo[at]
        nothing = places < 0
        if keep is not None:
            real = keep[at[0], None, None].expand(*places.shape[:3], -1)
            nothing = nothing | ~real.gather(-1, places.clamp_min(0))
        position = self._chunks(places.flatten(2)).to(dtype)
        keys = self._windows(position.masked_fill(self._chunks(nothing.flatten(2)), torch.inf))[:, :, :, None]
        own = torch.full_like(position, -1)  # the key that is its own and not read
        if self.alone:
            # There is another if the first or the last that may be read is another; in one round is enough.
            least, most = keys.amin(-1), keys.masked_fill(keys.isinf(), -1).amax(-1)
            others = (least < position) if self.causal else (least < position) | (most > position)
            others = others.flatten(2, 3).gather(2, undo.flatten(2)).unflatten(2, (self._rounds, -1)).any(2)
            others = others[:, :, None].expand(*places.shape[:3], -1).gather(-1, places.clamp_min(0))
            own = torch.where(self._chunks(others.flatten(2)), position, -1.0)
        if self.causal:  # earlier ones, and its own unless that is `own`
            return torch.where(own >= 0, position, position + 0.5)[..., None] <= keys
        if self.alone:
            return (keys == own[..., None]) | keys.isinf()
        if host_may_read(nothing) and not bool(nothing.any()):
            return None
        return keys.isinf().expand(*position.shape, -1)

    # The plain way

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        blocks, windows = self._chunks(self._sort(q)), self._windows(self._chunks(self._sort(k)))
        found, hidden = products(blocks, windows, scale), self._hidden(keep, wide(q.dtype), _ALL)
        if hidden is not None:
            found = found.masked_fill(hidden, BLOCKED)
        return self._unsort(found.flatten(2, 3)).transpose(2, 3).flatten(3)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        rounds = weights.unflatten(-1, (self._rounds, self.span)).transpose(2, 3)
        room = self._places.shape[-1]
        index = self._places.clamp_min(0)[..., None].expand(-1, -1, -1, -1, self.span)
        blocks = rounds.gather(3, index).masked_fill((self._places < 0)[..., None], 0.0)
        blocks = blocks.reshape(*blocks.shape[:2], self._rounds * room, self.span)
        mixed = self._chunks(blocks) @ self._windows(self._chunks(self._sort(v)))
        return self._unsort(mixed.flatten(2, 3)).sum(2)

    def _sort(self, x: Tensor) -> Tensor:
        """(batch, heads, rounds · room, width); any row where nothing stands."""
        index = self._places.clamp_min(0).flatten(2)[..., None]
        return x.gather(2, index.expand(*x.shape[:2], -1, x.shape[-1]))

    def _unsort(self, x: Tensor) -> Tensor:
        """(batch, heads, rounds, length, width)"""
        index = self._undo.flatten(2)[..., None].expand(*x.shape[:2], -1, x.shape[-1])
        return x.gather(2, index).unflatten(2, (self._rounds, -1))

    # The fused way

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=wide(q.dtype))
        for at, rows, mask in self._pieces(q, keep):
            blocks, keys, values = (self._chunks(rows.sort(x[at])) for x in (q, k, v))
            found, sums = flash.forward(blocks.flatten(0, 1), *self._read(keys, values), scale, mask=mask)
            parts, sums = rows.unsort(found.flatten(0, 2)), rows.unsort(sums.flatten()[:, None])[..., 0]
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
            towards = rows.sort(g[at]).masked_fill_((self._places[at] < 0).flatten(2)[..., None], 0.0)
            of_queries = (towards, *(rows.sort(x[at]) for x in (q, out)), rows.sort(lse[at][..., None]))
            towards, queries, found, sums = (self._chunks(x).flatten(0, 1) for x in of_queries)
            keys, values = self._read(*(self._chunks(rows.sort(x[at])) for x in (k, v)))
            to_queries, to_keys, to_values = flash.backward(
                towards, queries, keys, values, found, sums[..., 0], scale, mask=mask
            )
            heads = dq[at].shape[:2]
            dq[at] = rows.unsort(to_queries.flatten(0, 2)).sum(2)
            for gradient, part in ((dk, to_keys), (dv, to_values)):
                gradient[at] = rows.unsort(self._spread(part.unflatten(0, heads)).flatten(0, 2)).sum(2)
        return dq, dk, dv

    def _read(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The windows of both, with the chunks in place of heads, as the kernel takes them."""
        return self._windows(keys).flatten(0, 1), self._windows(values).flatten(0, 1)

    def _pieces(self, q: Tensor, keep: Tensor | None) -> Iterator[tuple[tuple[slice, slice], "_Rows", Tensor | None]]:
        """Some sequences and heads at a time: which, their rows, and what is added to their scores."""
        for at in groups(q, PIECE // (self._places.shape[-1] * self.width(q.shape[2]))):
            hidden = self._hidden(keep, wide(q.dtype), at)
            mask = None if hidden is None else hidden.flatten(0, 1).to(wide(q.dtype)).mul_(BLOCKED)
            yield at, _Rows.of(self._places[at], self._undo[at]), mask


@dataclass(frozen=True)
class _Rows:
    """Sorting and its undoing for some sequences and heads, whose rows are taken out of one long list."""

    places: Tensor  # of all rows of all heads
    undo: Tensor
    shape: torch.Size  # (batch, heads, rounds, length)

    @classmethod
    def of(cls, places: Tensor, undo: Tensor) -> "_Rows":
        first = torch.arange(places.shape[:2].numel(), device=places.device).view(*places.shape[:2], 1, 1)
        room = places.shape[2:].numel()
        return cls(
            (places.clamp_min(0) + first * undo.shape[-1]).flatten(), (undo + first * room).flatten(), undo.shape
        )

    def sort(self, x: Tensor) -> Tensor:
        """(batch, heads, rounds · room, width) of (batch, heads, length, width)"""
        return x.flatten(0, 2).index_select(0, self.places).view(*x.shape[:2], -1, x.shape[-1])

    def unsort(self, x: Tensor) -> Tensor:
        """(batch, heads, rounds, length, width) of (all sorted rows, width)"""
        return x.index_select(0, self.undo).view(*self.shape, x.shape[-1])


_ALL = (slice(None), slice(None))


def shown_in_ring(order: Tensor, chunk: int, before: int, after: int) -> Tensor:
    """How often each query is shown each key, (batch, heads, length, length): the definition, by comparing chunks."""
    rounds, length = order.shape[2:]
    if length <= chunk:
        return torch.ones(*order.shape[:2], length, length, dtype=torch.long, device=order.device)
    chunks = ceil_div(length, chunk)
    turn = torch.arange(rounds, device=order.device)[:, None] * chunks
    place = order.argsort(dim=-1) // chunk + turn  # each position's chunk on the ring of all rounds
    step = place[:, :, :, None, :, None] - place[:, :, None, :, None, :]
    count = torch.zeros_like(step)
    for look in range(-after, before + 1):
        count += (step - look) % (rounds * chunks) == 0
    return count.sum(dim=(2, 3))


__all__ = ["Ring", "shown_in_ring"]
