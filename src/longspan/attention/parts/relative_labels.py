"""A window and a few global keys under one softmax, with a learned term per relative position label (ETC).

The fused kernel gives no gradient of the scores, which the terms need. So batched products compute the scores, in
pieces that stay in cache, and recompute them in the backward pass; only the output and the log-sum-exp are stored.

Labels within the window depend on the offset alone. Viewed along its diagonals, the window is a matrix with one column
per offset, so terms are added, and their gradients summed, column by column, without gather or scatter.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.attention.buffers import Buffers
from longspan.attention.kernels.flash import DEAD
from longspan.attention.kernels.flash_dropout import BLOCKED, LOG2_E
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Band, Dense
from longspan.attention.layouts.base import ceil_div
from longspan.derivatives import Function, twice_differentiable

BLOCK = 64  # queries that share a span of keys
PIECE = 1 << 21  # scores at a time


@dataclass(frozen=True)
class RelativeLabels:
    """Which term each pair gets; offsets beyond ±clip share one. See `EtcAttention.position_labels`."""

    radius: int
    clip: int
    linked: Tensor | None  # (batch or 1, queries, global keys): pairs with the last label; None for none
    open: Tensor | None  # of that shape: pairs that may be read; None for all

    @property
    def span(self) -> int:
        return BLOCK + 2 * self.radius

    def alone(self) -> Iterator[tuple[slice, slice, bool]]:
        """(columns of offsets, their labels, whether labels fall) for offsets that have a label to themselves"""
        clip, middle = min(self.clip, self.radius), self.radius
        yield slice(middle - clip + 1, middle), slice(self.clip + 1, self.clip + clip), True
        yield slice(middle, middle + clip), slice(0, clip), False

    def shared(self) -> Iterator[tuple[slice, int]]:
        """(columns of offsets, the label they share)"""
        clip, middle = min(self.clip, self.radius), self.radius
        yield slice(0, middle - clip + 1), self.clip + clip
        yield slice(middle + clip, 2 * middle + 1), clip


def attend(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, begin: tuple[Tensor, Tensor, Tensor | None], terms: Tensor,
    labels: RelativeLabels, scale: float,
) -> Tensor:  # fmt: skip
    """`begin` is the keys, values and mask of the global tokens; `terms` is (batch, heads, queries, labels).

    If there are fewer heads of keys than of queries, consecutive query heads share one.
    """
    out: Tensor = _Labelled.apply(labels, keep, begin[2], scale, q, k, v, begin[0], begin[1], terms)
    return out


def pairs(heads: int, queries: int, begin: int, radius: int) -> int:
    """The number of query-key products."""
    return heads * ceil_div(queries, BLOCK) * BLOCK * (BLOCK + 2 * radius + begin)


def _recompute(ctx: Any, saved: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor | None]]:
    labels, keep, keep_begin, scale = ctx.given
    _, _, q, k, v, begin_k, begin_v, terms = saved
    band, places = Band(labels.radius, labels.radius), torch.arange(q.shape[2], device=q.device)[None]
    offset, clip = band.along(places, q.shape[2]) - places[:, :, None], labels.clip
    label = torch.where(offset >= 0, offset.clamp_max(clip), clip - offset.clamp_min(-clip))
    near = terms.gather(3, label[:, None].expand(*terms.shape[:2], -1, -1))
    far = terms[..., 2 * clip + 1, None].expand(*terms.shape[:3], begin_k.shape[2])
    if labels.linked is not None:
        far = torch.where(labels.linked[:, None], terms[..., 2 * clip + 2, None], far)
    if labels.open is not None:
        far = far.masked_fill(~labels.open[:, None], BLOCKED)
    sources = [KeySource(band, k, v, keep, extra=near), KeySource(Dense(), begin_k, begin_v, keep_begin, extra=far)]
    return joint(q, sources, scale=scale), (None, None, None, None, q, k, v, begin_k, begin_v, terms)


class _Labelled(Function):
    @staticmethod
    def forward(
        ctx: Any, labels: RelativeLabels, keep: Tensor | None, keep_begin: Tensor | None, scale: float, *tensors: Tensor
    ) -> Tensor:
        q = tensors[0]
        out, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=q.dtype)
        for head in _heads(labels, keep, keep_begin, scale, tensors):
            for piece in head.pieces():
                near, far = head.scores(piece)
                largest = torch.maximum(near.amax(-1, keepdim=True), far.amax(-1, keepdim=True))
                total = near.sub_(largest).exp2_().sum(-1, keepdim=True)
                total += far.sub_(largest).exp2_().sum(-1, keepdim=True)
                mixed = torch.bmm(near, head.windows(head.values, piece))
                _add_product(mixed.flatten(0, 1), far.flatten(0, 1), head.begin_values)
                dead = largest < DEAD
                mixed.mul_(total.reciprocal().masked_fill_(dead, 0.0))
                # An infinite log-sum-exp makes all weights 0.
                total = total.log2_().add_(largest).masked_fill_(dead, -BLOCKED)
                rows = head.rows(piece)
                out[head.index][rows] = mixed.flatten(0, 1)[: rows.stop - rows.start]
                lse[head.index][rows] = total.flatten()[: rows.stop - rows.start]
        ctx.save_for_backward(out, lse, *tensors)
        ctx.given = labels, keep, keep_begin, scale
        return out

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        out, lse, *tensors = ctx.saved_tensors
        labels, keep, keep_begin, scale = ctx.given
        gradients = [torch.empty(x.shape, dtype=x.dtype) for x in tensors]
        dq, dk, dv, dk_begin, dv_begin, dterms = gradients
        dkeys = dvalues = dq  # replaced for the first head of each group
        for head in _heads(labels, keep, keep_begin, scale, tensors):
            at, keys_at, length = head.index, head.keys_index, dk.shape[2]
            if head.first:  # of those that share these keys
                dkeys, dvalues = torch.zeros_like(head.keys), torch.zeros_like(head.values)
                dk_begin[keys_at].zero_()
                dv_begin[keys_at].zero_()
            for piece in head.pieces():
                rows = head.rows(piece)
                near, far = head.scores(piece)
                g_part, out_part = head.part(g[at], piece), head.part(out[at], piece)
                q_part, lse_part = head.part(head.q, piece), head.part(lse[at][:, None], piece)
                inner = (g_part * out_part).sum(-1, keepdim=True)
                near.sub_(lse_part).exp2_()
                far.sub_(lse_part).exp2_()
                dnear = head.buffers("dnear", near.shape, near.dtype)
                torch.bmm(g_part, head.windows(head.values, piece).mT, out=dnear)
                _fold(dvalues, torch.bmm(near.mT, g_part), piece)
                dnear.sub_(inner).mul_(near)
                flat_g, flat_q = g_part.flatten(0, 1), q_part.flatten(0, 1)
                dfar = (flat_g @ head.begin_values.mT).view(far.shape)
                _add_product(dv_begin[keys_at], far.flatten(0, 1).mT, flat_g)
                dfar.sub_(inner).mul_(far)
                dq_part = torch.bmm(dnear, head.windows(head.keys, piece))
                _add_product(dq_part.flatten(0, 1), dfar.flatten(0, 1), head.begin_keys)
                dq[at][rows] = dq_part.flatten(0, 1)[: rows.stop - rows.start]
                _fold(dkeys, torch.bmm(dnear.mT, q_part), piece)
                _add_product(dk_begin[keys_at], dfar.flatten(0, 1).mT, flat_q)
                of_terms = head.term_gradients(dnear, dfar, piece)
                dterms[at][rows] = of_terms.flatten(0, 1)[: rows.stop - rows.start]
            inside = slice(labels.radius, labels.radius + length)
            torch.mul(dkeys[inside], scale, out=dk[keys_at])
            dv[keys_at].copy_(dvalues[inside])
        dq.mul_(scale)
        dk_begin.mul_(scale)
        return None, None, None, None, *gradients


def _heads(
    labels: RelativeLabels, keep: Tensor | None, keep_begin: Tensor | None, scale: float, tensors: Any
) -> Iterator["_Head"]:
    buffers = Buffers()
    shared: dict[str, Tensor] = {}
    heads, share = tensors[0].shape[1], tensors[0].shape[1] // tensors[1].shape[1]
    for sequence in range(tensors[0].shape[0]):
        masks = [None if mask is None else mask[sequence] for mask in (keep, keep_begin)]
        for head in range(heads):
            rows = [x[sequence, head if x.shape[1] == heads else head // share] for x in tensors]
            yield _Head((sequence, head), share, labels, masks, scale, rows, buffers, shared)


class _Head:
    """One head of one sequence; all heads share `buffers`, and the tensors of `shared`."""

    def __init__(
        self,
        index: tuple[int, int],
        share: int,
        labels: RelativeLabels,
        masks: list[Tensor | None],
        scale: float,
        tensors: list[Tensor],
        buffers: Buffers,
        shared: dict[str, Tensor],
    ) -> None:
        self.index, self.labels, self.scale = index, labels, scale
        self.keys_index, self.first = (index[0], index[1] // share), index[1] % share == 0
        self.buffers, self.shared = buffers, shared
        self.q, keys, values, self.begin_keys, self.begin_values, self.terms = tensors
        self.count = ceil_div(len(self.q), BLOCK)
        self.keys, self.values = self._padded("keys", keys), self._padded("values", values)
        shown = torch.zeros(len(self.keys), dtype=torch.bool)
        shown[labels.radius : labels.radius + len(keys)] = True if masks[0] is None else masks[0]
        self.hidden = torch.zeros(len(shown), dtype=keys.dtype).masked_fill_(~shown, BLOCKED)
        self.masked = masks[0] is not None
        self.hidden_begin = None
        if masks[1] is not None:
            self.hidden_begin = torch.zeros(len(masks[1]), dtype=keys.dtype).masked_fill_(~masks[1], BLOCKED)
        if "outside" not in shared:
            offsets = torch.arange(labels.span) - torch.arange(BLOCK)[:, None]
            outside = (offsets < 0) | (offsets > 2 * labels.radius)
            shared["outside"] = torch.zeros(offsets.shape, dtype=keys.dtype).masked_fill_(outside, BLOCKED)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """(first block, one past the last), as even as possible"""
        calls = ceil_div(self.count * BLOCK * self.labels.span, PIECE)
        size = ceil_div(self.count, calls)
        for begin in range(0, self.count, size):
            yield begin, min(begin + size, self.count)

    def rows(self, piece: tuple[int, int]) -> slice:
        return slice(piece[0] * BLOCK, min(piece[1] * BLOCK, len(self.q)))

    def part(self, x: Tensor, piece: tuple[int, int]) -> Tensor:
        """The queries' rows of a piece, (blocks, block, width), padded with zeros"""
        x, padded = x[self.rows(piece)], (piece[1] - piece[0]) * BLOCK
        if len(x) < padded:
            x = torch.cat([x, x.new_zeros(padded - len(x), x.shape[1])])
        return x.view(-1, BLOCK, x.shape[1])

    def windows(self, x: Tensor, piece: tuple[int, int]) -> Tensor:
        """(blocks, span, width), a view in which spans overlap"""
        begin, end = piece[0] * BLOCK, (piece[1] - 1) * BLOCK + self.labels.span
        return x[begin:end].unfold(0, self.labels.span, BLOCK).mT

    def scores(self, piece: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Scores with the window and with the global keys, for base 2, hidden keys at `BLOCKED`."""
        q, terms = self.part(self.q, piece), self.part(self.terms, piece) * LOG2_E
        near = self.buffers("near", (len(q), BLOCK, self.labels.span), q.dtype)
        by = self.scale * LOG2_E
        torch.baddbmm(self.shared["outside"], q, self.windows(self.keys, piece).mT, alpha=by, out=near)
        along = self._diagonals(near)
        for columns, label in self.labels.shared():
            along[..., columns] += terms[..., label, None]
        for columns, labels, falls in self.labels.alone():
            along[..., columns] += terms[..., labels].flip(-1) if falls else terms[..., labels]
        reaches = piece[0] * BLOCK < self.labels.radius, piece[1] * BLOCK + self.labels.radius > len(self.q)
        if self.masked or any(reaches):
            near += self.windows(self.hidden[:, None], piece).mT
        far = torch.mm(q.flatten(0, 1), self.begin_keys.mT).view(*q.shape[:2], -1).mul_(by)
        across = 2 * self.labels.clip + 1
        far += terms[..., across : across + 1]
        linked, opened = (self._across(x, piece) for x in (self.labels.linked, self.labels.open))
        if linked is not None:
            far += linked * (terms[..., across + 1] - terms[..., across])[..., None]
        if opened is not None:
            far.masked_fill_(~opened, BLOCKED)
        if self.hidden_begin is not None:
            far += self.hidden_begin
        return near, far

    def term_gradients(self, dnear: Tensor, dfar: Tensor, piece: tuple[int, int]) -> Tensor:
        """(blocks, block, labels)"""
        gradients = dnear.new_zeros(*dnear.shape[:2], self.terms.shape[1])
        along = self._diagonals(dnear)
        for columns, label in self.labels.shared():
            gradients[..., label] = along[..., columns].sum(-1)
        for columns, labels, falls in self.labels.alone():
            gradients[..., labels] = along[..., columns].flip(-1) if falls else along[..., columns]
        across, linked = 2 * self.labels.clip + 1, self._across(self.labels.linked, piece)
        gradients[..., across] = dfar.sum(-1)
        if linked is not None:
            gradients[..., across + 1] = (dfar * linked).sum(-1)
            gradients[..., across] -= gradients[..., across + 1]
        return gradients

    def _diagonals(self, near: Tensor) -> Tensor:
        """(blocks, block, offsets), a view"""
        span = self.labels.span
        return near.as_strided((len(near), BLOCK, 2 * self.labels.radius + 1), (BLOCK * span, span + 1, 1))

    def _across(self, x: Tensor | None, piece: tuple[int, int]) -> Tensor | None:
        """A tensor of pairs with global keys, as (blocks, block, global keys)"""
        return None if x is None else self.part(x[self.index[0] % len(x)], piece)

    def _padded(self, name: str, x: Tensor) -> Tensor:
        """x with zeros before and after, so that every block has a whole span."""
        radius, length = self.labels.radius, self.count * BLOCK + 2 * self.labels.radius
        padded = self.shared.get(name)
        if padded is None:
            padded = self.shared[name] = x.new_zeros(length, x.shape[1])
        padded[radius : radius + len(x)] = x
        return padded


def _fold(total: Tensor, part: Tensor, piece: tuple[int, int]) -> None:
    """Add gradients of the spans (blocks, span, width) to those of the padded sequence."""
    blocks, span = part.shape[:2]
    for offset in range(0, span, BLOCK):
        width, begin = min(BLOCK, span - offset), piece[0] * BLOCK + offset
        rows = total[begin : begin + (blocks - 1) * BLOCK + width].unfold(0, width, BLOCK).mT
        rows += part[:, offset : offset + width]


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    torch.addmm(total, a, b, out=total)  # torch's FLOP counter does not see `addmm_`
