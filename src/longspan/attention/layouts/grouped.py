"""Grouped queries: several query heads read one head of keys and values, which is not repeated for them."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.groups import as_rows, interleave, members
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts.base import Layout, wide


@dataclass(frozen=True)
class Grouped(Layout):
    """Each `group` consecutive query heads read one head of keys and values, with the layout `inner`.

    If all queries read the same keys, those of a group are rows of one head. Otherwise the first query heads of all
    groups are computed together, then the second ones, and so on. They are views of the queries, and each meets the
    keys as they are: no key is copied, whatever the inner layout does.
    """

    inner: Layout
    group: int

    @property
    def takes_bias(self) -> bool:  # type: ignore[override]
        return self.inner.takes_bias

    @property
    def shared(self) -> bool:
        return True

    @property
    def step(self) -> int | None:
        return self.inner.step

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple[Layout, slice]:
        inner, read = self.inner.part(begin, end, queries, keys)
        return Grouped(inner, self.group), read

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        if self._as_rows(keep, bias):
            rows = self.inner.scores(as_rows(q, k.shape[1]), k, keep, None, scale)
            return rows.reshape(*q.shape[:3], -1)
        parts = [
            self.inner.of_heads(heads).scores(q[:, heads], k, _of(keep, heads), _of_bias(bias, heads), scale)
            for heads in self._members
        ]
        return interleave(_same_width(parts))

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        if self.inner.rows_alike:
            return self.inner.mix(as_rows(weights, v.shape[1]), v).reshape(*weights.shape[:3], -1)
        parts = []
        for heads in self._members:
            inner, part = self.inner.of_heads(heads), weights[:, heads]
            parts.append(inner.mix(part[..., : inner.width(v.shape[2])] if self.inner.widths_differ else part, v))
        return interleave(parts)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        if self._as_rows(keep, bias):
            rows_out, rows_lse = self.inner.forward(as_rows(q, k.shape[1]), k, v, keep, None, scale)
            return _split_groups(rows_out, q), rows_lse.reshape(q.shape[:3])
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=wide(q.dtype))
        for heads in self._members:
            out[:, heads], lse[:, heads] = self.inner.of_heads(heads).forward(
                q[:, heads], k, v, _of(keep, heads), _of_bias(bias, heads), scale
            )
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
        if self._as_rows(keep, bias):
            g_rows, q_rows, out_rows = (as_rows(x, k.shape[1]) for x in (g, q, out))
            lse_rows = lse.reshape(q_rows.shape[:3])
            gradients = self.inner.backward(g_rows, q_rows, k, v, keep, None, out_rows, lse_rows, scale)
            return gradients[0].reshape(q.shape), gradients[1], gradients[2]
        dq, dk, dv = torch.empty_like(q), None, None
        for heads in self._members:
            dq[:, heads], dk_part, dv_part = self.inner.of_heads(heads).backward(
                g[:, heads], q[:, heads], k, v, _of(keep, heads), _of_bias(bias, heads), out[:, heads], lse[:, heads],
                scale,
            )  # fmt: skip
            dk = dk_part if dk is None else dk.add_(dk_part)
            dv = dv_part if dv is None else dv.add_(dv_part)
        assert dk is not None and dv is not None
        return dq, dk, dv

    def width(self, keys: int) -> int:
        return self.inner.width(keys)

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return self.inner.pairs(heads, queries, keys)

    def of_heads(self, heads: slice) -> Layout:
        raise NotImplementedError("groups are shared last, after heads are chosen")

    def _as_rows(self, keep: Tensor | None, bias: Tensor | None) -> bool:
        return self.inner.rows_alike and bias is None and (keep is None or keep.dim() == 2)

    @property
    def _members(self) -> list[slice]:
        return members(self.group, 1)


def _split_groups(rows: Tensor, q: Tensor) -> Tensor:
    """Rows of the key heads as rows of the query heads.

    The heads of a token become neighbours in memory: the copy is made here, so merging the heads makes none.
    """
    by_token: Tensor = rows.unflatten(2, (-1, q.shape[2])).permute(0, 3, 1, 2, 4)
    return by_token.flatten(2, 3).contiguous().transpose(1, 2)


def _of(keep: Tensor | None, heads: slice) -> Tensor | None:
    """The mask of some query heads, if it differs by head."""
    return keep if keep is None or keep.dim() == 2 or keep.shape[1] == 1 else keep[:, heads]


def _of_bias(bias: Tensor | None, heads: slice) -> Tensor | None:
    return bias if bias is None or bias.shape[0] == 1 else bias[heads]


def _same_width(scores: list[Tensor]) -> list[Tensor]:
    """Scores of layouts of different width, with blocked keys appended to the narrower ones."""
    widest = max(part.shape[-1] for part in scores)
    return [
        part if part.shape[-1] == widest else pad(part, (0, widest - part.shape[-1]), value=BLOCKED) for part in scores
    ]


__all__ = ["Grouped"]
