"""Nyströmformer: softmax attention approximated through a few landmarks, the means of segments of queries and keys.

    softmax(Q K̃ᵀ) · pinv(softmax(Q̃ K̃ᵀ)) · softmax(Q̃ Kᵀ) · V          scores times 1 / sqrt(d), products from the right

The pseudo-inverse is approximated by a few steps of an iteration, whose start is scaled by the norms of each matrix.
The authors' code takes one maximum over the batch instead; the output of a sequence then depends on its batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable, share_heads
from longspan.attention.groups import as_rows, sum_groups
from longspan.attention.kernels import flash
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Dense
from longspan.attention.layouts.base import blocked, products, wide
from longspan.attention.map_factors import ProductMap
from longspan.attention.parts import value_convolution
from longspan.config import option
from longspan.derivatives import twice_differentiable
from longspan.errors import InvalidOption
from longspan.shapes import KeyMask, Keys, Output, Queries, Values, Weights


class NystromAttention(Attention):
    name = "nystrom"
    paper = "Xiong et al. 2021"
    survey_class = ("LR",)
    order = "n·landmarks"
    exponent = 1.0
    supports = Supports(grouped=True)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        landmarks: int = option(64, "landmarks: segments of queries and of keys, represented by their means", low=1)
        iterations: int = option(6, "steps towards the pseudo-inverse", low=1)
        kernel: int = option(
            33, "width of the convolution of the values that is added, one filter per head; 0: none", low=0
        )

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        kernel = self.options.kernel
        if kernel and kernel % 2 == 0:
            raise InvalidOption(f"option kernel must be odd, so that it has a middle, or 0, not {kernel}")
        if kernel:
            self.filters = nn.Parameter(torch.empty(shape.heads, kernel).uniform_(-(kernel**-0.5), kernel**-0.5))

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length, scale = q.shape[2], self.shape.head_dim**-0.5
        keep = readable(length, length, False, extras.key_mask, q.device)[:, 0, 0].expand(q.shape[0], -1)
        maps = []
        for queries, keys, may in zip(q, k, keep):  # one example, (heads, length, width)
            scores = queries @ keys.mT * scale
            if may.sum() <= self.options.landmarks:  # each token is its own landmark: A · pinv(A) · A = A
                maps.append(masked_softmax(scores, may.expand_as(scores)))
                continue
            segments = may.nonzero()[:, 0].tensor_split(self.options.landmarks)
            query_landmarks = torch.stack([queries[:, segment].mean(dim=1) for segment in segments], dim=1)
            key_landmarks = torch.stack([keys[:, segment].mean(dim=1) for segment in segments], dim=1)
            to_landmarks = (queries @ key_landmarks.mT * scale).softmax(dim=-1)
            among = (query_landmarks @ key_landmarks.mT * scale).softmax(dim=-1)
            scores = query_landmarks @ keys.mT * scale
            from_landmarks = masked_softmax(scores, may.expand_as(scores))
            maps.append(to_landmarks @ self._inverse_by_definition(among) @ from_landmarks)
        return torch.stack(maps) + self._convolution_by_definition(length) * keep[:, None, None, :]

    def _inverse_by_definition(self, a: Tensor) -> Tensor:
        """Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))) from Z = Aᵀ / (‖A‖₁ ‖A‖∞)"""
        columns, rows = a.abs().sum(dim=-2).amax(dim=-1), a.abs().sum(dim=-1).amax(dim=-1)
        z = a.mT / (columns * rows)[:, None, None]
        identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        for _ in range(self.options.iterations):
            az = a @ z
            z = z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az))) / 4
        return z

    def _convolution_by_definition(self, length: int) -> Tensor:
        """(heads, queries, keys): the filter's number for each offset, 0 past its ends."""
        kernel = self.options.kernel
        if not kernel:
            return torch.zeros(())
        position = torch.arange(length, device=self.filters.device)
        tap = position - position[:, None] + kernel // 2
        return torch.where((tap >= 0) & (tap < kernel), self.filters[:, tap.clamp(0, kernel - 1)], 0.0)

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        if q.shape[3] != v.shape[3] and flash.fits(q, k, k):
            wide_q, wide_k, wide_v = (flash.widen(x, max(q.shape[3], v.shape[3])) for x in (q, k, v))
            return self.attend(wide_q, wide_k, wide_v, extras)[..., : v.shape[3]]
        fused = flash.fits(q, k, v)
        out = self._fused(q, k, v, extras.key_mask) if fused else self._plain(q, k, v, extras.key_mask)
        if not self.options.kernel:
            return out
        v = v if extras.key_mask is None else v.masked_fill(~extras.key_mask[:, None, :, None], 0.0)
        return value_convolution.convolve(v, self.filters.to(v.dtype)).add_(out)

    def _fused(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        most, keep = self.options.landmarks, None if keep is None or bool(keep.all()) else keep
        short = (torch.full((len(q),), q.shape[2]) if keep is None else keep.sum(dim=1)) <= most
        if bool(short.all()):
            return self._dense(q, k, v, keep)
        if keep is None or not bool(short.any()):
            segments = Segments.of(q, keep, most)
            fused: Tensor = _Fused.apply(q, k, v, keep, segments, self.options.iterations, self._scale)  # type: ignore[no-untyped-call, unused-ignore]
            return fused
        rows = torch.cat([short.nonzero(), (~short).nonzero()])[:, 0]
        outs = [
            self._fused(*(x.index_select(0, group) for x in (q, k, v, keep)))
            for group in rows.split([int(short.sum()), int((~short).sum())])
        ]
        return torch.cat(outs).index_select(0, rows.argsort())

    def _plain(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        """The same without branches; in a sequence with at most `landmarks` tokens, each token is a landmark."""
        most = self.options.landmarks
        keep = readable(1, q.shape[2], False, keep, q.device)[:, 0, 0].expand(q.shape[0], -1)
        means = _segment_matrix(keep, most, wide(q.dtype))
        query_landmarks, key_landmarks, value_landmarks = (
            torch.einsum("bmn,bhnd->bhmd", means, x.to(means.dtype)).to(x.dtype) for x in (q, k, v)
        )
        read = joint(query_landmarks, [KeySource(Dense(), k, v, keep)], scale=self._scale)
        key_landmarks, value_landmarks = (share_heads(x, q.shape[1]) for x in (key_landmarks, value_landmarks))
        carried = carry(query_landmarks, key_landmarks, read, self.options.iterations, self._scale)
        count = keep.sum(dim=1)[:, None]
        carried = torch.where((count <= most)[:, :, None, None], value_landmarks, carried)
        landmarks = torch.arange(most, device=q.device) < count
        return joint(q, [KeySource(Dense(), key_landmarks, carried, landmarks)], scale=self._scale)

    def _dense(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        return joint(q, [KeySource(Dense(), k, v, keep)], scale=self._scale)

    @property
    def _scale(self) -> float:
        return float(self.shape.head_dim**-0.5)

    def factorise(self, q: Queries, k: Keys, extras: Extras) -> ProductMap | None:
        """The three factors of the paper, the first two multiplied, and the convolution by its offsets."""
        most = self.options.landmarks
        keep = readable(1, q.shape[2], False, extras.key_mask, q.device)[:, 0, 0]
        if bool((keep.sum(1) <= most).any()):
            return None  # each token is a landmark: there is nothing thin
        means = _segment_matrix(keep, most, wide(q.dtype))[:, None]
        query_landmarks, key_landmarks = means @ q, means @ k
        left = products(q, key_landmarks, self._scale).softmax(-1)
        scores = products(query_landmarks, k, self._scale)
        right = masked_softmax(scores, keep[:, None, None].expand_as(scores))
        right = carry(query_landmarks, key_landmarks, right, self.options.iterations, self._scale)
        added = self.filters if self.options.kernel else None
        return ProductMap(left, right.mT, added=added, key_mask=extras.key_mask)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, most = self.shape.heads, self.shape.fused_width, self.options.landmarks
        kernel, kept = self.options.kernel, queries * (width + 1)  # the output, its log-sum-exp
        flops = value_convolution.flops(queries, kernel, width) if kernel else 0
        if queries <= most:
            flops += 4 * queries * keys * width
        else:
            flops += 8 * queries * most * width + 4 * most * most * width + 8 * self.options.iterations * most**3
            kept += most * (4 * width + 1)  # landmarks of queries and keys, what they read, and `carry` of it
        return Cost(heads * flops, heads * kept)


def carry(q: Tensor, k: Tensor, read: Tensor, iterations: int, scale: float) -> Tensor:
    """pinv(softmax(q kᵀ)) · read, where q and k are landmarks, and `read` is what the query landmarks have read."""
    a = products(q, k, scale).softmax(dim=-1).flatten(0, 1)
    z = a.mT / a.sum(dim=-2).amax(dim=-1)[:, None, None]  # the rows sum to 1, so ‖A‖∞ = 1
    for _ in range(iterations):  # the paper's bracket, multiplied out: no identity, and one call for each product
        az = torch.bmm(a, z)
        inner = torch.baddbmm(az, az, az, beta=7, alpha=-1)
        inner = torch.baddbmm(az, az, inner, beta=15, alpha=-1)
        z = torch.baddbmm(z, z, inner, beta=13 / 4, alpha=-1 / 4)
    carried: Tensor = torch.bmm(z, read.flatten(0, 1).to(z.dtype)).to(read.dtype).unflatten(0, read.shape[:2])
    return carried


def _segment_matrix(keep: KeyMask, landmarks: int, dtype: torch.dtype) -> Tensor:
    """(batch, landmarks, length): each row averages a segment of the readable tokens, split as by `tensor_split`."""
    count = keep.sum(dim=1, keepdim=True)
    rank = keep.cumsum(dim=1) - 1  # of a token among the readable ones
    size, longer = count // landmarks, count % landmarks
    border = longer * (size + 1)
    segment = torch.where(rank < border, rank // (size + 1), longer + (rank - border) // size.clamp_min(1))
    member = (segment[:, None, :] == torch.arange(landmarks, device=keep.device)[:, None]) & keep[:, None, :]
    return member.to(dtype) / member.sum(dim=-1, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class Segments:
    """The tokens of each landmark, for sequences that have more tokens than landmarks."""

    landmarks: int
    # (sequences, positions of their readable tokens, number of these)
    groups: tuple[tuple[slice, slice | Tensor, int], ...]

    @classmethod
    def of(cls, x: Tensor, keep: KeyMask | None, landmarks: int) -> "Segments":
        length = x.shape[2]
        if keep is None:
            return cls(landmarks, ((slice(0, len(x)), slice(0, length), length),))
        groups: list[tuple[slice, slice | Tensor, int]] = []
        for row, may in enumerate(keep):
            where = may.nonzero()[:, 0]
            first, last, count = int(where[0]), int(where[-1]), len(where)
            unbroken = last - first + 1 == count  # then a view suffices
            groups.append((slice(row, row + 1), slice(first, last + 1) if unbroken else where, count))
        return cls(landmarks, tuple(groups))

    def _cuts(self, tokens: int) -> Iterator[tuple[slice, slice, int]]:
        """(landmarks, tokens, size of each segment); the first segments have one more token if there is a remainder."""
        size, longer = divmod(tokens, self.landmarks)
        border = longer * (size + 1)
        if longer:
            yield slice(0, longer), slice(0, border), size + 1
        yield slice(longer, self.landmarks), slice(border, tokens), size

    def means(self, x: Tensor) -> Tensor:
        """(batch, heads, landmarks, width)"""
        out = x.new_empty(*x.shape[:2], self.landmarks, x.shape[3])
        for batch, where, count in self.groups:
            tokens = x[batch, :, where]
            for landmarks, rows, size in self._cuts(count):
                torch.mean(tokens[:, :, rows].unflatten(2, (-1, size)), dim=3, out=out[batch, :, landmarks])
        return out

    def add_back(self, to: Tensor, g: Tensor) -> None:
        """Add the gradients of the means to the gradients of the tokens."""
        for batch, where, count in self.groups:
            for landmarks, rows, size in self._cuts(count):
                share = g[batch, :, landmarks, None] / size
                if isinstance(where, slice):
                    to[batch, :, where][:, :, rows].unflatten(2, (-1, size)).add_(share)
                else:
                    to[batch].index_add_(2, where[rows], share.expand(-1, -1, -1, size, -1).flatten(2, 3))


def _recompute(ctx: Any, saved: Sequence[Any]) -> tuple[Tensor, Sequence[Tensor | None]]:
    q, k, v, keep, *_ = saved
    everything = torch.ones(len(q), q.shape[2], dtype=torch.bool, device=q.device) if keep is None else keep
    means = _segment_matrix(everything, ctx.segments.landmarks, q.dtype)[:, None]
    query_landmarks, key_landmarks = means @ q, share_heads(means @ k, q.shape[1])
    read = joint(query_landmarks, [KeySource(Dense(), k, v, keep)], scale=ctx.scale)
    carried = carry(query_landmarks, key_landmarks, read, ctx.iterations, ctx.scale)
    out = joint(q, [KeySource(Dense(), key_landmarks, carried)], scale=ctx.scale)
    return out, (q, k, v, None, None, None, None)


class _Fused(torch.autograd.Function):
    """The two long products by the fused kernel; the small ones between them are recomputed in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        segments: Segments,
        iterations: int,
        scale: float,
    ) -> Tensor:
        # Landmarks of keys are few: they alone are repeated for the query heads that share them.
        query_landmarks, key_landmarks = segments.means(q), share_heads(segments.means(k), q.shape[1])
        read, read_lse = flash.forward(as_rows(query_landmarks, k.shape[1]), k, v, scale, mask=blocked(keep, q))
        read, read_lse = read.reshape(query_landmarks.shape), read_lse.reshape(query_landmarks.shape[:3])
        carried = carry(query_landmarks, key_landmarks, read, iterations, scale)
        out, lse = flash.forward(q, key_landmarks, carried, scale)
        ctx.save_for_backward(q, k, v, keep, query_landmarks, key_landmarks, read, read_lse, carried, out, lse)
        ctx.segments, ctx.iterations, ctx.scale = segments, iterations, scale
        return out

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, keep, query_landmarks, key_landmarks, read, read_lse, carried, out, lse = ctx.saved_tensors
        segments, scale = ctx.segments, ctx.scale
        dq, d_key_landmarks, d_carried = flash.backward(g, q, key_landmarks, carried, out, lse, scale)
        with torch.enable_grad():
            small = tuple(x.detach().requires_grad_() for x in (query_landmarks, key_landmarks, read))
            again = carry(small[0], small[1], small[2], ctx.iterations, scale)
        from_queries, from_keys, d_read = torch.autograd.grad(again, small, d_carried)
        d_rows, rows, read_rows = (as_rows(x, k.shape[1]) for x in (d_read, query_landmarks, read))
        d_query_landmarks, dk, dv = flash.backward(
            d_rows, rows, k, v, read_rows, read_lse.reshape(rows.shape[:3]), scale, mask=blocked(keep, q)
        )
        segments.add_back(dq, d_query_landmarks.reshape(from_queries.shape) + from_queries)
        segments.add_back(dk, sum_groups(d_key_landmarks + from_keys, k.shape[1]))
        return dq, dk, dv, None, None, None, None
