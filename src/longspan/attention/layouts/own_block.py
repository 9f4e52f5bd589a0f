"""Each query reads the past within its own block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attention.kernels import flash
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts.base import Layout, blocked_where, ceil_div, first_rows, pad_rows, products


@dataclass(frozen=True)
class OwnBlock(Layout):
    """Query i reads the keys of its own block of `block` positions up to itself.

    Blocks are the kernel's batch, so its causal mask applies and nothing is copied. The padding of the last block needs
    no mask: it comes after every query.
    """

    block: int

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        scores = products(self._split(q), self._split(k), scale)
        hidden = torch.ones(self.block, self.block, dtype=torch.bool, device=q.device).triu(1)
        if keep is not None:
            hidden = hidden | ~self._split(keep[:, None, :, None]).mT
        return self._join(scores.masked_fill(hidden, BLOCKED), q)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return self._join(self._split(weights) @ self._split(v), weights)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        folded_q, folded_k, folded_v = self._batches(q, k, v)
        out, lse = flash.forward(folded_q, folded_k, folded_v, scale, causal=True, mask=self._mask(q, keep))
        return self._back(out, q), self._back(lse[..., None], q)[..., 0]

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
        g, folded_q, folded_k, folded_v, out, lse = self._batches(g, q, k, v, out, lse[..., None])
        gradients = flash.backward(
            g, folded_q, folded_k, folded_v, out, lse[..., 0], scale, causal=True, mask=self._mask(q, keep)
        )
        dq, dk, dv = (self._back(x, q) for x in gradients)
        return dq, dk, dv

    def width(self, keys: int) -> int:
        return self.block

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * ceil_div(queries, self.block) * self.block**2

    def _split(self, x: Tensor) -> Tensor:
        """(batch, heads, blocks, block, width)"""
        count = ceil_div(x.shape[2], self.block)
        missing = count * self.block - x.shape[2]
        if torch.compiler.is_compiling() or missing:
            x = pad_rows(x, 0, missing)
        blocks: Tensor = x.unflatten(2, (count, self.block))
        return blocks

    def _join(self, x: Tensor, like: Tensor) -> Tensor:
        """The inverse: (batch, heads, length of `like`, width)."""
        x = x.flatten(2, 3)
        if torch.compiler.is_compiling():
            return first_rows(x, like.shape[2])
        return (
            x if x.shape[2] == like.shape[2] else x[:, :, : like.shape[2]].clone(memory_format=torch.contiguous_format)
        )

    def _batches(self, *tensors: Tensor) -> list[Tensor]:
        """(batch · heads · blocks, 1, block, width) of each"""
        return [self._split(x).flatten(0, 2)[:, None] for x in tensors]

    def _back(self, x: Tensor, like: Tensor) -> Tensor:
        count = ceil_div(like.shape[2], self.block)
        return self._join(x[:, 0].unflatten(0, (*like.shape[:2], count)), like)

    def _mask(self, q: Tensor, keep: Tensor | None) -> Tensor | None:
        if keep is None:
            return None
        shared = keep[:, None, :, None].expand(-1, q.shape[1], -1, -1)
        (mask,) = self._batches(blocked_where(~shared, q))
        return mask.mT
