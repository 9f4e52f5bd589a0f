"""Attention along one axis of a grid: every line is a separate sequence (Axial)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.kernels import flash
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts.base import Layout, blocked_where, ceil_div, cut_rows, first_rows, products
from longspan.attention.layouts.dense import Dense
from longspan.attention.layouts.grid import fold_axis, unfold_axis
from longspan.attention.layouts.residue import Residue


@dataclass(frozen=True)
class GridAxis(Layout):
    """A query reads the positions of its slab with the same index modulo `stride`; if causal, none after itself.

    The sequence consists of slabs of `length` rows of `stride` positions.

    In a grid in raster order, this is the axis of `length` positions that are `stride` apart: 1 within rows, the width
    of the image within columns. Without `length` there is one slab, as long as the sequence. There are as many queries
    as keys, and the sequence may end anywhere.

    Folding needs no copy: (batch · slabs, length, stride · heads, width) is a view of heads as a projection returns
    them, and (batch · heads · slabs, length, stride, width) is a view of contiguous heads.
    """

    stride: int
    length: int | None = None
    causal: bool = False

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        queries, axes = q.shape[2], self._axes(q.shape[2], 1)
        scores = products(fold_axis(self._pad(q, 1), axes, 1), fold_axis(self._pad(k, 1), axes, 1), scale)
        valid = torch.ones(q.shape[0], queries, dtype=torch.bool, device=q.device) if keep is None else keep
        readable = fold_axis(self._pad(valid[:, None, :, None], 1), axes, 1).mT
        if self.causal:
            readable = readable & torch.ones(axes[1], axes[1], dtype=torch.bool, device=q.device).tril()
        return first_rows(unfold_axis(scores.masked_fill(~readable, BLOCKED), axes, 1), queries)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        queries, axes = weights.shape[2], self._axes(weights.shape[2], 1)
        mixed = fold_axis(self._pad(weights, 1), axes, 1) @ fold_axis(self._pad(v, 1), axes, 1)
        return first_rows(unfold_axis(mixed, axes, 1), queries)

    @property
    def step(self) -> int:
        return self.stride * (self.length or 1)

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple[Layout, slice]:
        if self.length is not None:  # whole slabs
            return self, slice(begin, end)
        return Residue(self.stride, Dense(self.causal)).part(begin, end, queries, keys)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        queries = q.shape[2]
        q, k, v = (self._pad(x) for x in (q, k, v))
        fold = self._fold(q)
        mask = self._mask(q, queries, keep, fold)
        out, lse = flash.forward(fold.lines(q), fold.lines(k), fold.lines(v), scale, causal=self.causal, mask=mask)
        return cut_rows(fold.heads(out), queries), cut_rows(fold.heads(lse[..., None]), queries)[..., 0]

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
        queries = q.shape[2]
        g, q, k, v, out, lse = (self._pad(x) for x in (g, q, k, v, out, lse[..., None]))
        fold = self._fold(q)
        gradients = flash.backward(
            fold.lines(g),
            fold.lines(q),
            fold.lines(k),
            fold.lines(v),
            fold.lines(out),
            fold.lines(lse)[..., 0],
            scale,
            causal=self.causal,
            mask=self._mask(q, queries, keep, fold),
        )
        dq, dk, dv = (first_rows(fold.heads(x), queries) for x in gradients)
        return dq, dk, dv

    def width(self, keys: int) -> int:
        return self._axes(keys, 1)[1]

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        slabs, length, stride = self._axes(queries)
        return heads * slabs * stride * length * length

    def _axes(self, queries: int, spare: int = 0) -> tuple[int, int, int]:
        """(slabs, rows of a slab, positions of a row); `spare` adds one, because exporters specialise sizes of 1."""
        if self.length is None:
            return 1, ceil_div(queries, self.stride) + spare, self.stride
        return ceil_div(queries, self.length * self.stride) + spare, self.length, self.stride

    def _pad(self, x: Tensor, spare: int = 0) -> Tensor:
        slabs, length, stride = self._axes(x.shape[2], spare)
        missing = slabs * length * stride - x.shape[2]
        return pad(x, (0, 0, 0, missing)) if spare or missing else x

    def _fold(self, q: Tensor) -> "_LineView":
        projected = q.transpose(1, 2).is_contiguous() and not q.is_contiguous()
        return _LineView(q.shape[0], q.shape[1], self._axes(q.shape[2]), projected)

    def _mask(self, q: Tensor, queries: int, keep: Tensor | None, fold: "_LineView") -> Tensor | None:
        """Padding, and the positions that fill the last slab; if causal, no real query reads the latter."""
        if keep is None:
            if self.causal or queries == q.shape[2]:
                return None
            keep = torch.ones(q.shape[0], queries, dtype=torch.bool, device=q.device)
        hidden = blocked_where(~pad(keep, (0, q.shape[2] - queries)), q)
        return fold.lines(hidden[:, None, :, None].expand(-1, q.shape[1], -1, -1)).mT


@dataclass(frozen=True)
class _LineView:
    """(batch, heads, positions, width) to lines (batch …, … heads, length, width) and back, without a copy."""

    batch: int
    count: int  # of heads
    axes: tuple[int, int, int]
    projected: bool  # heads are side by side at each position, as a projection returns them

    def lines(self, x: Tensor) -> Tensor:
        slabs, length, stride = self.axes
        if self.projected:
            return x.transpose(1, 2).reshape(self.batch * slabs, length, stride * self.count, -1).transpose(1, 2)
        return x.reshape(self.batch * self.count * slabs, length, stride, -1).transpose(1, 2)

    def heads(self, lines: Tensor) -> Tensor:
        x = lines.transpose(1, 2)
        if self.projected:
            return x.reshape(self.batch, -1, self.count, x.shape[-1]).transpose(1, 2)
        return x.reshape(self.batch, self.count, -1, x.shape[-1])
