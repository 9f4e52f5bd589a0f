"""Fused calls over runs of overlapping blocks, for `Band`, `Tiles` and `Rectangles`.

A run is a number of evenly spaced query blocks, each with a span of keys, also evenly spaced. Both are views of the
sequence, so nothing is gathered. Gradients of keys are folded back by shifted additions, without a scatter.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.kernels import flash
from longspan.attention.layouts.base import wide

Portion = tuple[int | slice, int | slice]  # some heads of one sequence of the batch, or one head of some sequences


@dataclass(frozen=True)
class BlockRun:
    """One fused call: `count` blocks of queries with their spans of keys, for a portion of the batch and heads."""

    portion: Portion
    count: int
    first_query: int
    block: int  # queries of a block
    query_step: int  # from the first query of a block to that of the next
    first_key: int  # may be negative
    span: int  # keys of a block
    key_step: int
    added: Tensor | None  # mask to add to the scores: (portion or 1, blocks or 1, queries or 1, span)

    # Blocks are the kernel's batch and the portion is its heads: gradients then come back block by block, and fold from
    # contiguous memory.

    @property
    def mask(self) -> Tensor | None:
        return None if self.added is None else self.added.transpose(0, 1)

    def queries(self, x: Tensor) -> Tensor:
        """(blocks, portion, block, width), a view"""
        return _windows(x[self.portion], self.first_query, self.count, self.block, self.query_step).transpose(0, 1)

    def keys(self, x: Tensor) -> Tensor:
        """(blocks, portion, span, width), an overlapping view if the spans lie within the sequence"""
        last = self.first_key + (self.count - 1) * self.key_step + self.span
        inside = slice_padded(x[self.portion], self.first_key, last)
        return _windows(inside, 0, self.count, self.span, self.key_step).transpose(0, 1)

    def fold(self, total: Tensor, part: Tensor, lead: int) -> None:
        """Add gradients of the spans to those of the sequence, which has `lead` rows before its first key."""
        total, begin = total[self.portion], self.first_key + lead
        step = self.span if self.count == 1 else self.key_step
        for offset in range(0, self.span, step):
            width = min(step, self.span - offset)
            shifted = part[:, :, offset : offset + width].transpose(0, 1)
            _windows(total, begin + offset, self.count, width, step).add_(shifted)


def forward(q: Tensor, k: Tensor, v: Tensor, runs: Iterable[BlockRun], scale: float) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; together the runs cover every query once."""
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=wide(q.dtype))
    for run in runs:
        run_out, run_lse = flash.forward(run.queries(q), run.keys(k), run.keys(v), scale, mask=run.mask)
        run.queries(out).copy_(run_out)
        run.queries(lse[..., None])[..., 0].copy_(run_lse)
    return out, lse


def backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    runs: Iterable[BlockRun],
    scale: float,
    *,
    lead: int = 0,
    trail: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v; spans reach at most `lead` keys before the first key and `trail` after the last."""
    dq = torch.empty_like(q)
    dk, dv = (x.new_zeros(*x.shape[:2], lead + x.shape[2] + trail, x.shape[3]) for x in (k, v))
    for run in runs:
        dq_part, dk_part, dv_part = flash.backward(
            run.queries(g),
            run.queries(q),
            run.keys(k),
            run.keys(v),
            run.queries(out),
            run.queries(lse[..., None])[..., 0],
            scale,
            mask=run.mask,
        )
        run.queries(dq).copy_(dq_part)
        run.fold(dk, dk_part, lead)
        run.fold(dv, dv_part, lead)
    inside = slice(lead, lead + k.shape[2])
    return dq, dk[:, :, inside], dv[:, :, inside]


def portions(batch: int, heads: int, size: int) -> Iterator[Portion]:
    """Of one sequence, `size` heads at a time; of several, one head of `size` of them, so that no mask is copied."""
    if batch == 1:
        for head in range(0, heads, size):
            yield 0, slice(head, head + size)
    else:
        for head in range(heads):
            for row in range(0, batch, size):
                yield slice(row, row + size), head


def mask_of(mask: Tensor, portion: Portion) -> Tensor:
    """The part of a mask (batch or 1, blocks, queries, span) that a portion needs."""
    rows = portion[0]
    return mask[rows] if isinstance(rows, slice) and mask.shape[0] > 1 else mask


def slice_padded(x: Tensor, begin: int, end: int) -> Tensor:
    """x[:, begin:end] of (rows, length, width), with zeros outside the sequence."""
    length = x.shape[1]
    inside = x[:, max(0, begin) : max(0, min(end, length))]
    before, after = max(0, -begin), max(0, end - max(length, begin))
    return pad(inside, (0, 0, before, after)) if before or after else inside


def _windows(x: Tensor, begin: int, count: int, width: int, step: int) -> Tensor:
    """(rows, count, width, …): x[:, begin + step·i :][:, :width] for each i, a view"""
    return x[:, begin : begin + (count - 1) * step + width].unfold(1, width, step).transpose(-1, -2)
