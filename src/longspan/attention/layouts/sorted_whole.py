"""The `Sorted` layout for short texts: one softmax over all pairs, masked to those that some round reads.

It needs no sorting and no rounds, and takes many sequences in one call, so a batch of short texts costs about as much
as dense attention. The backward pass recomputes the masks.
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
    results = [q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=wide(q.dtype))]
    for index, mask in _masks(layout, q, keep):
        parts = flash.forward(q[index], k[index], v[index], scale, causal=layout.causal, mask=mask)
        for total, part in zip(results, parts):
            total[index] = part
    return results


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
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    for index, mask in _masks(layout, q, keep):
        g_part, queries, keys, values, outs, sums = (x[index] for x in (g, q, k, v, out, lse))
        parts = flash.backward(g_part, queries, keys, values, outs, sums, scale, causal=layout.causal, mask=mask)
        for total, part in zip(gradients, parts):
            total[index] = part
    return gradients


def _masks(layout: "Sorted", q: Tensor, keep: Tensor | None) -> Iterator[tuple[_Index, Tensor]]:
    """Some sequences and heads at a time, and the mask to add: the log of how often each pair is read."""
    length = q.shape[2]
    slots, reads_self = layout.small(keep)
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
        itself = reads_self[index] if layout.once else reads_self[index] * layout.rounds
        count.diagonal(dim1=-2, dim2=-1).copy_(itself)
        mask = count.to(wide(q.dtype))
        yield index, mask.sub_(1).mul_(-BLOCKED) if layout.once else mask.log_().clamp_min_(BLOCKED)
