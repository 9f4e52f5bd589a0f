"""A `Sorted` layout where a text is short: one softmax over all pairs, under a mask of those that some round shows.

No sorting, no rounds, and many sequences in one call, so that a batch of short texts costs about what dense attention
does. The masks are made again in the backward pass.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longspan.attention.kernels import flash
from longspan.attention.kernels.flash_dropout import BLOCKED
from longspan.attention.layouts.base import PIECE, groups, wide
from longspan.attention.layouts.sorted_rows import reading

if TYPE_CHECKING:
    from longspan.attention.layouts.sorted import Sorted

_Index = tuple[slice, slice]  # sequences and heads


def forward(layout: "Sorted", q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, scale: float) -> list[Tensor]:
    """Output and log-sum-exp."""
    found = [q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=wide(q.dtype))]
    for index, mask in _masks(layout, q, keep):
        parts = flash.forward(q[index], k[index], v[index], scale, causal=layout.causal, mask=mask)
        for total, part in zip(found, parts):
            total[index] = part
    return found


def backward(
    layout: "Sorted",
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
) -> list[Tensor]:
    """Gradients of q, k and v."""
    found = [torch.empty_like(x) for x in (q, k, v)]
    for index, mask in _masks(layout, q, keep):
        towards, queries, keys, values, outs, sums = (x[index] for x in (g, q, k, v, out, lse))
        parts = flash.backward(towards, queries, keys, values, outs, sums, scale, causal=layout.causal, mask=mask)
        for total, part in zip(found, parts):
            total[index] = part
    return found


def _masks(layout: "Sorted", q: Tensor, keep: Tensor | None) -> Iterator[tuple[_Index, Tensor]]:
    """Some sequences and heads at a time, and what is added to their scores: how often a pair is shown, as a log."""
    length = q.shape[2]
    slots, own = layout.small(keep)
    furthest = torch.iinfo(slots.dtype).min + layout.before
    for index in groups(q, PIECE // (length * length)):
        rounds = zip(*(x[index].unbind(2) for x in (reading(slots), slots)))
        steps = (there[..., :, None] - here[..., None, :] for there, here in rounds)
        count = next(steps)
        if layout.once:
            for step in steps:
                torch.minimum(count, step, out=count)
            count.le_(furthest)
        else:
            count.le_(furthest)
            for step in steps:
                count += step.le_(furthest)
        count.diagonal(dim1=-2, dim2=-1).copy_(own[index] if layout.once else own[index] * layout.rounds)
        mask = count.to(wide(q.dtype))
        yield index, mask.sub_(1).mul_(-BLOCKED) if layout.once else mask.log_().clamp_min_(BLOCKED)
