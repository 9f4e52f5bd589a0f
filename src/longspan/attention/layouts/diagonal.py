"""Blocks of positions as sequences of their own."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention import flash
from longspan.attention.layouts.base import Layout, blocked, blocked_where, ceil_div, first_rows, wide
from longspan.attention.layouts.dense import Dense


@dataclass(frozen=True)
class Diagonal(Layout):
    """Each query reads its own block of `block` positions and no other, of the past only if causal.

    The whole blocks are views of the sequence, and the last, shorter one is a call of its own: nothing is padded.
    """

    block: int
    causal: bool = False

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        if keep is None:
            keep = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        own = self._fold(keep[:, None, :, None])[:, 0, :, 0]
        inside = Dense(self.causal).scores(self._fold(q), self._fold(k), own, None, scale)
        return self._unfold(inside, q.shape[2])

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return self._unfold(self._fold(weights) @ self._fold(v), weights.shape[2])

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=wide(q.dtype))
        for run in self._runs(q, keep):
            part, part_lse = flash.forward(run.of(q), run.of(k), run.of(v), scale, causal=self.causal, mask=run.mask)
            run.of(out).copy_(part)
            run.of(lse).copy_(part_lse)
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
        gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for run in self._runs(q, keep):
            parts = flash.backward(
                run.of(g),
                run.of(q),
                run.of(k),
                run.of(v),
                run.of(out),
                run.of(lse),
                scale,
                causal=self.causal,
                mask=run.mask,
            )
            for total, part in zip(gradients, parts):
                run.of(total).copy_(part)
        return gradients

    def width(self, keys: int) -> int:
        return self.block

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        full, rest = divmod(queries, self.block)
        return heads * (full * self.block**2 + rest**2)

    def _fold(self, x: Tensor) -> Tensor:
        """(batch · blocks, heads, block, width), padded on the right"""
        # One block to spare, because exporters treat a size of 1 apart from all others.
        count = ceil_div(x.shape[2], self.block) + 1
        x = pad(x, (0, 0, 0, count * self.block - x.shape[2]))
        return x.unflatten(2, (count, self.block)).transpose(1, 2).flatten(0, 1)

    def _unfold(self, x: Tensor, length: int) -> Tensor:
        count = ceil_div(length, self.block) + 1
        return first_rows(x.unflatten(0, (-1, count)).transpose(1, 2).flatten(2, 3), length)

    def _runs(self, q: Tensor, keep: Tensor | None) -> Iterator["_Run"]:
        """The fused calls: the whole blocks of each sequence, or of each head if those are fewer; then the rest."""
        batch, heads, length = q.shape[:3]
        count = length // self.block
        whole = slice(0, count * self.block)
        if count:
            mask = None
            if keep is not None:  # batch, blocks, 1, block
                mask = blocked_where(~keep[:, whole], q).unflatten(1, (count, self.block))[:, :, None]
            if batch <= heads:
                for row in range(batch):
                    yield _Run((row,), whole, count, None if mask is None else mask[row, None])
            else:
                for head in range(heads):
                    yield _Run((slice(None), head), whole, count, mask)
        if whole.stop < length:
            rest = slice(whole.stop, length)
            yield _Run((), rest, 0, None if keep is None else blocked(keep[:, rest], q))


@dataclass(frozen=True)
class _Run:
    """One fused call: the whole blocks of one sequence or of one head, or the rest of all of them."""

    where: tuple[int | slice, ...]  # which (batch, heads)
    positions: slice
    count: int  # blocks; 0 for the rest
    mask: Tensor | None

    def of(self, x: Tensor) -> Tensor:
        """(heads or batch, blocks, block, …) or (batch, heads, rest, …), a view"""
        if not self.count:
            return x[:, :, self.positions]
        return x[self.where][:, self.positions].unflatten(1, (self.count, -1))
