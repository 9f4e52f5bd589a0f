"""Chunks in a ring, as Reformer's released code has them: before the first chunk stands the last one.

In the release every token of a chunk reads all tokens of its own chunk and of some before and behind it, found by
turning the list of all chunks. So the first chunk reads the last; where there are several rounds of sorting, their
chunks are one list, and the first of a round reads the last of the round before. What several chunks of a window hold
is read, and counted, several times. No paper defines this, and the amount of padding changes it: it is here so that
models trained that way give the numbers they were trained to give.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad

from longspan.attention.base import masked_softmax
from longspan.attention.layouts.base import ceil_div, products


@dataclass(frozen=True, eq=False)
class Ring:
    """Rounds of orders of all positions, cut into chunks; each chunk reads itself and its neighbours on the ring."""

    order: Tensor  # (batch, heads, rounds, length): the positions, sorted
    chunk: int
    before: int = 1
    after: int = 0

    @property
    def span(self) -> int:
        """Keys of a query in each round; a text of one chunk has no neighbours, and one round of it is all."""
        return self.chunk * (1 if self._single else 1 + self.before + self.after)

    @property
    def _single(self) -> bool:
        return self.order.shape[-1] <= self.chunk

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        *,
        scale: float,
        causal: bool,
        alone: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """Softmax over all that is read; with `alone`, a token's own key is read where there is no other."""
        places = self._places()  # (batch, heads, rounds, places): from 1 on; 0: nothing
        blocks, windows = self._blocks(q, places), self._windows(k, places)
        scores = self._back(products(blocks, windows, scale), places)
        position = torch.arange(1, q.shape[2] + 1, device=q.device)
        found = self._windows(position.expand(*q.shape[:2], -1)[..., None], places)[..., 0]
        found = self._back(found[..., None, :].expand(*blocks.shape[:4], -1), places)
        shown = found > 0
        if keep is not None:
            mask = pad(keep, (1, 0))[:, None, None].expand(*found.shape[:3], -1)
            shown = shown & mask.gather(-1, found)
        if causal:
            shown = shown & (found <= position[:, None])
        if alone:
            own = found == position[:, None]
            shown = shown & ~(own & (shown & ~own).any(-1, keepdim=True))
        weights = drop(masked_softmax(scores, shown).to(q.dtype), dropout, training=bool(dropout))
        weights = weights.unflatten(-1, (-1, self.span)).transpose(2, 3).flatten(2, 3)
        rounds = torch.arange(places.shape[2], device=q.device)[:, None] * q.shape[2]
        mixed = self._blocks(weights, (places + rounds).masked_fill(places == 0, 0)) @ self._windows(v, places)
        return self._pick(mixed.flatten(2, 3), places).sum(2)

    def pairs(self, heads: int) -> int:
        """Products of a query and a key."""
        rounds, length = self.order.shape[2:]
        return heads * (1 if self._single else rounds) * ceil_div(length, self.chunk) * self.chunk * self.span

    def _places(self) -> Tensor:
        order = self.order[:, :, :1] if self._single else self.order
        length = order.shape[-1]
        return pad(order + 1, (0, ceil_div(length, self.chunk) * self.chunk - length))

    def _blocks(self, x: Tensor, places: Tensor) -> Tensor:
        """(batch, heads, chunks of all rounds, chunk, width): rows as they are sorted, zeros for nothing."""
        index = places.flatten(2)[..., None].expand(*x.shape[:2], -1, x.shape[-1])
        return pad(x, (0, 0, 1, 0)).gather(2, index).unflatten(2, (-1, self.chunk))

    def _windows(self, x: Tensor, places: Tensor) -> Tensor:
        """(batch, heads, chunks of all rounds, span, width)"""
        blocks = self._blocks(x, places)
        if self._single:
            return blocks
        return torch.cat([blocks.roll(shift, 2) for shift in range(self.before, -self.after - 1, -1)], 3)

    def _back(self, x: Tensor, places: Tensor) -> Tensor:
        """(batch, heads, length, rounds · span): what each query found in all rounds, from what each chunk did."""
        return self._pick(x.flatten(2, 3), places).transpose(2, 3).flatten(3)

    def _pick(self, x: Tensor, places: Tensor) -> Tensor:
        """(batch, heads, rounds, length, width): the rows of sorted places in the order of positions."""
        rounds, room = places.shape[2:]
        length = self.order.shape[-1]
        at = torch.arange(rounds * room, device=x.device).unflatten(0, (rounds, room)).expand_as(places)
        undo = torch.empty_like(places[..., :length]).scatter_(-1, places[..., :length] - 1, at[..., :length])
        index = undo.flatten(2)[..., None].expand(*x.shape[:2], -1, x.shape[-1])
        return x.gather(2, index).unflatten(2, (rounds, length))


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
