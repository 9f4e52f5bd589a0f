"""Every stride-th position as a separate sequence: dilated and strided patterns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attention.layouts.base import Layout, ceil_div, first_rows, pad_rows


@dataclass(frozen=True)
class Residue(Layout):
    """Positions with the same index modulo `stride` form a sequence of their own, with the layout `inner`.

    A causal `Dense` inside gives every stride-th past key; a `Band` inside gives a dilated window.
    """

    stride: int
    inner: Layout

    @property
    def takes_bias(self) -> bool:  # type: ignore[override]
        return self.inner.takes_bias

    @property
    def shared(self) -> bool:
        return self.inner.shared

    @property
    def widths_differ(self) -> bool:
        return self.inner.widths_differ

    @property
    def step(self) -> int | None:
        return None if self.inner.step is None else self.stride * self.inner.step

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple[Layout, slice]:
        sizes = (ceil_div(number, self.stride) for number in (begin, end, queries, keys))
        inner, read = self.inner.part(*sizes)
        return Residue(self.stride, inner), slice(read.start * self.stride, min(keys, read.stop * self.stride))

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        folded_q, folded_k = self._fold(q, k)
        inside = self.inner.scores(folded_q, folded_k, self._keep(k, keep), self._bias(bias), scale)
        return unfold_residues(inside, self.stride, q.shape[2])

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return unfold_residues(self.inner.mix(*self._fold(weights, v)), self.stride, weights.shape[2])

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        folded_q, folded_k, folded_v = self._fold(q, k, v)
        out, lse = self.inner.forward(folded_q, folded_k, folded_v, self._keep(k, keep), self._bias(bias), scale)
        return (
            unfold_residues(out, self.stride, q.shape[2]),
            unfold_residues(lse[..., None], self.stride, q.shape[2])[..., 0],
        )

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
        folded_g, folded_q, folded_k, folded_v, folded_out, folded_lse = self._fold(g, q, k, v, out, lse[..., None])
        gradients = self.inner.backward(
            folded_g,
            folded_q,
            folded_k,
            folded_v,
            self._keep(k, keep),
            self._bias(bias),
            folded_out,
            folded_lse[..., 0],
            scale,
        )
        dq, dk, dv = (unfold_residues(x, self.stride, of.shape[2]) for x, of in zip(gradients, (q, k, v)))
        return dq, dk, dv

    def width(self, keys: int) -> int:
        return self.inner.width(ceil_div(keys, self.stride))

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return self.stride * self.inner.pairs(heads, ceil_div(queries, self.stride), ceil_div(keys, self.stride))

    def of_heads(self, heads: slice) -> Layout:
        return Residue(self.stride, self.inner.of_heads(heads))

    def share_keys(self, group: int) -> Layout:
        return Residue(self.stride, self.inner.share_keys(group))  # so that keys are folded once for the group

    def _fold(self, *tensors: Tensor) -> list[Tensor]:
        return [fold_residues(x, self.stride) for x in tensors]

    def _keep(self, k: Tensor, keep: Tensor | None) -> Tensor | None:
        """The mask of padding and of the positions that fill the last row."""
        batch, keys = k.shape[0], k.shape[2]
        if keep is None:
            if not torch.compiler.is_compiling() and keys % self.stride == 0:
                return None
            keep = torch.ones(batch, keys, dtype=torch.bool, device=k.device)
        return fold_residues(keep[:, None, :, None], self.stride)[:, 0, :, 0]

    def _bias(self, bias: Tensor | None) -> Tensor | None:
        """The offsets that are multiples of the stride; offset 0 stays in the middle."""
        return None if bias is None else bias[:, bias.shape[1] // 2 % self.stride :: self.stride]


def fold_residues(x: Tensor, stride: int) -> Tensor:
    """(batch, heads, length, width) -> (batch · stride, heads, length / stride, width), padded on the right."""
    rows = ceil_div(x.shape[2], stride)
    x = pad_rows(x, 0, rows * stride - x.shape[2])
    folded: Tensor = x.unflatten(2, (rows, stride))
    return folded.permute(0, 3, 1, 2, 4).flatten(0, 1).contiguous()


def unfold_residues(x: Tensor, stride: int, length: int) -> Tensor:
    """The inverse of `fold_residues`."""
    x = x.unflatten(0, (x.shape[0] // stride, stride)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    x = first_rows(x, length)
    return x if torch.compiler.is_compiling() else x.contiguous()
