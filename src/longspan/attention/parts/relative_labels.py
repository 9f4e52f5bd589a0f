"""A band and a few global keys under one softmax, with a learned term for the label of each pair.

The fused kernel gives no gradient of the scores, which the terms need. So the scores are made by batched products, in
pieces that stay in cache, and made again in the backward pass; nothing but the output and the log-sum-exp is kept.

Labels of a band depend on the offset alone. Seen along its diagonals, the band is a view of the scores in which each
offset is a column, so terms are added, and their gradients summed, column by column: nothing is gathered or scattered.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.attention.kernels.flash import DEAD
from longspan.attention.kernels.flash_dropout import BLOCKED, LOG2_E
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Band, Dense
from longspan.attention.layouts.base import ceil_div
from longspan.derivatives import twice_differentiable

BLOCK = 64  # queries that share a span of keys
PIECE = 1 << 21  # scores at a time


@dataclass(frozen=True)
class RelativeLabels:
    """Which terms are added: offsets beyond ±clip share one; see `Etc.position_labels`."""

    radius: int
    clip: int
    linked: Tensor | None  # (batch or 1, queries, global keys): which pairs have the last label; None for none
    open: Tensor | None  # of that shape: which may be read; None for all

    @property
    def span(self) -> int:
        return BLOCK + 2 * self.radius

    def alone(self) -> Iterator[tuple[slice, slice, bool]]:
        """(offsets along the diagonals, their labels, whether these fall) of those that share theirs with no other"""
        clip, middle = min(self.clip, self.radius), self.radius
        yield slice(middle - clip + 1, middle), slice(self.clip + 1, self.clip + clip), True
        yield slice(middle, middle + clip), slice(0, clip), False

    def shared(self) -> Iterator[tuple[slice, int]]:
        """(offsets along the diagonals, the label of them all)"""
        clip, middle = min(self.clip, self.radius), self.radius
        yield slice(0, middle - clip + 1), self.clip + clip
        yield slice(middle + clip, 2 * middle + 1), clip


def attend(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, begin: tuple[Tensor, Tensor, Tensor | None], terms: Tensor,
    labels: RelativeLabels, scale: float,
) -> Tensor:  # fmt: skip
    """`begin` is the keys, values and mask of the global tokens; `terms` is (batch, heads, queries, labels)."""
    return _Labelled.apply(labels, keep, begin[2], scale, q, k, v, begin[0], begin[1], terms)


def pairs(heads: int, queries: int, begin: int, radius: int) -> int:
    """How many products of a query and a key are computed."""
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


class _Labelled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, labels: RelativeLabels, keep: Tensor | None, keep_begin: Tensor | None, scale: float, *tensors: Tensor
    ) -> Tensor:
        q = tensors[0]
        out, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:3], dtype=q.dtype)
        for head in _heads(labels, keep, keep_begin, scale, tensors):
            for piece in head.pieces():
                near, far = head.scores(piece)
                most = torch.maximum(near.amax(-1, keepdim=True), far.amax(-1, keepdim=True))
                total = near.sub_(most).exp2_().sum(-1, keepdim=True)
                total += far.sub_(most).exp2_().sum(-1, keepdim=True)
                mixed = torch.bmm(near, head.windows(head.values, piece))
                _add_product(mixed.flatten(0, 1), far.flatten(0, 1), head.begin_values)
                dead = most < DEAD
                mixed.mul_(total.reciprocal().masked_fill_(dead, 0.0))
                # Against an endless log-sum-exp all weights are 0.
                total = total.log2_().add_(most).masked_fill_(dead, -BLOCKED)
                rows = head.rows(piece)
                out[head.own][rows] = mixed.flatten(0, 1)[: rows.stop - rows.start]
                lse[head.own][rows] = total.flatten()[: rows.stop - rows.start]
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
        for head in _heads(labels, keep, keep_begin, scale, tensors):
            own, length = head.own, dk.shape[2]
            dkeys, dvalues = torch.zeros_like(head.keys), torch.zeros_like(head.values)
            dk_begin[own].zero_()
            dv_begin[own].zero_()
            for piece in head.pieces():
                rows = head.rows(piece)
                near, far = head.scores(piece)
                g_part, out_part = head.part(g[own], piece), head.part(out[own], piece)
                q_part, lse_part = head.part(head.q, piece), head.part(lse[own][:, None], piece)
                inner = (g_part * out_part).sum(-1, keepdim=True)
                near.sub_(lse_part).exp2_()
                far.sub_(lse_part).exp2_()
                towards = head.room("towards", near.shape)
                torch.bmm(g_part, head.windows(head.values, piece).mT, out=towards)
                _fold(dvalues, torch.bmm(near.mT, g_part), piece)
                towards.sub_(inner).mul_(near)
                flat_g, flat_q = g_part.flatten(0, 1), q_part.flatten(0, 1)
                towards_begin = (flat_g @ head.begin_values.mT).view(far.shape)
                _add_product(dv_begin[own], far.flatten(0, 1).mT, flat_g)
                towards_begin.sub_(inner).mul_(far)
                dq_part = torch.bmm(towards, head.windows(head.keys, piece))
                _add_product(dq_part.flatten(0, 1), towards_begin.flatten(0, 1), head.begin_keys)
                dq[own][rows] = dq_part.flatten(0, 1)[: rows.stop - rows.start]
                _fold(dkeys, torch.bmm(towards.mT, q_part), piece)
                _add_product(dk_begin[own], towards_begin.flatten(0, 1).mT, flat_q)
                found = head.term_gradients(towards, towards_begin, piece)
                dterms[own][rows] = found.flatten(0, 1)[: rows.stop - rows.start]
            inside = slice(labels.radius, labels.radius + length)
            torch.mul(dkeys[inside], scale, out=dk[own])
            dv[own].copy_(dvalues[inside])
        dq.mul_(scale)
        dk_begin.mul_(scale)
        return None, None, None, None, *gradients


def _heads(
    labels: RelativeLabels, keep: Tensor | None, keep_begin: Tensor | None, scale: float, tensors: Any
) -> Iterator["_Head"]:
    buffers: dict[str, Tensor] = {}
    for sequence in range(tensors[0].shape[0]):
        masks = [None if mask is None else mask[sequence] for mask in (keep, keep_begin)]
        for head in range(tensors[0].shape[1]):
            yield _Head((sequence, head), labels, masks, scale, [x[sequence, head] for x in tensors], buffers)


class _Head:
    """One head of one sequence; the buffers go on to the next."""

    def __init__(
        self,
        own: tuple[int, int],
        labels: RelativeLabels,
        masks: list[Tensor | None],
        scale: float,
        tensors: list[Tensor],
        buffers: dict[str, Tensor],
    ) -> None:
        self.own, self.labels, self.scale, self.buffers = own, labels, scale, buffers
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
        if "outside" not in buffers:
            offsets = torch.arange(labels.span) - torch.arange(BLOCK)[:, None]
            outside = (offsets < 0) | (offsets > 2 * labels.radius)
            buffers["outside"] = torch.zeros(offsets.shape, dtype=keys.dtype).masked_fill_(outside, BLOCKED)

    def pieces(self) -> Iterator[tuple[int, int]]:
        """(first block, behind the last), as even as can be"""
        calls = ceil_div(self.count * BLOCK * self.labels.span, PIECE)
        size = ceil_div(self.count, calls)
        for begin in range(0, self.count, size):
            yield begin, min(begin + size, self.count)

    def rows(self, piece: tuple[int, int]) -> slice:
        return slice(piece[0] * BLOCK, min(piece[1] * BLOCK, len(self.q)))

    def part(self, x: Tensor, piece: tuple[int, int]) -> Tensor:
        """(blocks, block, width) of what belongs to queries, with zeros for those that are not there"""
        x, room = x[self.rows(piece)], (piece[1] - piece[0]) * BLOCK
        if len(x) < room:
            x = torch.cat([x, x.new_zeros(room - len(x), x.shape[1])])
        return x.unflatten(0, (-1, BLOCK))

    def windows(self, x: Tensor, piece: tuple[int, int]) -> Tensor:
        """(blocks, span, width), a view in which spans overlap"""
        begin, end = piece[0] * BLOCK, (piece[1] - 1) * BLOCK + self.labels.span
        return x[begin:end].unfold(0, self.labels.span, BLOCK).mT

    def scores(self, piece: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """With the band and with the global keys, for base 2, hidden keys far below."""
        q, terms = self.part(self.q, piece), self.part(self.terms, piece) * LOG2_E
        near = self.room("near", torch.Size([len(q), BLOCK, self.labels.span]))
        by = self.scale * LOG2_E
        torch.baddbmm(self.buffers["outside"], q, self.windows(self.keys, piece).mT, alpha=by, out=near)
        along = self._diagonals(near)
        for columns, label in self.labels.shared():
            along[..., columns] += terms[..., label, None]
        for columns, own, falls in self.labels.alone():
            along[..., columns] += terms[..., own].flip(-1) if falls else terms[..., own]
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

    def term_gradients(self, towards: Tensor, towards_begin: Tensor, piece: tuple[int, int]) -> Tensor:
        """(blocks, block, labels)"""
        found = towards.new_zeros(*towards.shape[:2], self.terms.shape[1])
        along = self._diagonals(towards)
        for columns, label in self.labels.shared():
            found[..., label] = along[..., columns].sum(-1)
        for columns, own, falls in self.labels.alone():
            found[..., own] = along[..., columns].flip(-1) if falls else along[..., columns]
        across, linked = 2 * self.labels.clip + 1, self._across(self.labels.linked, piece)
        found[..., across] = towards_begin.sum(-1)
        if linked is not None:
            found[..., across + 1] = (towards_begin * linked).sum(-1)
            found[..., across] -= found[..., across + 1]
        return found

    def _diagonals(self, near: Tensor) -> Tensor:
        """(blocks, block, offsets), a view"""
        span = self.labels.span
        return near.as_strided((len(near), BLOCK, 2 * self.labels.radius + 1), (BLOCK * span, span + 1, 1))

    def _across(self, x: Tensor | None, piece: tuple[int, int]) -> Tensor | None:
        """(blocks, block, global keys) of what belongs to pairs with global keys"""
        return None if x is None else self.part(x[self.own[0] % len(x)], piece)

    def _padded(self, name: str, x: Tensor) -> Tensor:
        """With zeros in front and behind, so that every block has a whole span."""
        radius, room = self.labels.radius, self.count * BLOCK + 2 * self.labels.radius
        padded = self.buffers.get(name)
        if padded is None:
            padded = self.buffers[name] = x.new_zeros(room, x.shape[1])
        padded[radius : radius + len(x)] = x
        return padded

    def room(self, name: str, shape: torch.Size) -> Tensor:
        """A buffer that is used again and again: fresh memory costs more than what is done in it."""
        buffer = self.buffers.get(name)
        if buffer is None or buffer.numel() < shape.numel():
            buffer = self.buffers[name] = torch.empty(shape.numel(), dtype=self.q.dtype)
        return buffer[: shape.numel()].view(shape)


def _fold(total: Tensor, part: Tensor, piece: tuple[int, int]) -> None:
    """Add gradients of the spans (blocks, span, width) to those of the padded sequence."""
    blocks, span = part.shape[:2]
    for offset in range(0, span, BLOCK):
        width, begin = min(BLOCK, span - offset), piece[0] * BLOCK + offset
        rows = total[begin : begin + (blocks - 1) * BLOCK + width].unfold(0, width, BLOCK).mT
        rows += part[:, offset : offset + width]


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    torch.addmm(total, a, b, out=total)  # `addmm_` is not seen by torch's counter of operations
