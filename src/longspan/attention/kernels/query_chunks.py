"""One softmax over several sources of keys by ordinary operations, on any device, without the scores of all pairs.

Each source gives its output, the largest score of each row, and the sum of exponentials relative to that score. They
are computed in pieces of the queries, where the layout can be split, and computed again in the backward pass, so that
only the inputs and the outputs are kept. Largest score and sum stay apart: a log-sum-exp would round the sum away where
scores are large.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from longspan.attention.kernels.flash import DEAD
from longspan.attention.layouts.base import Layout, add, blocked

if TYPE_CHECKING:
    from longspan.attention.kernels.multi_source_softmax import KeySource

PIECE = 1 << 24  # scores of one piece, over all sequences and heads

_Part = tuple[Tensor, Tensor, Tensor]  # output, largest score and sum of each row, (batch, heads, queries, …)


def attend(q: Tensor, sources: Sequence["KeySource"], scale: float, dropout: float) -> Tensor:
    """softmax(scale · q kᵀ over the union of the sources) v; a row with nothing to read is 0."""
    parts = [_source(q, source, scale, dropout) for source in sources]
    if len(parts) == 1:
        return parts[0][0]
    most = torch.stack([most for _, most, _ in parts]).amax(0)
    shares = [(own - most).exp() * total for _, own, total in parts]
    everything = torch.stack(shares).sum(0)
    everything = everything + (most < DEAD)  # a row with nothing to read: 0 / 1
    out = parts[0][0] * (shares[0] / everything).to(q.dtype)
    for (part, _, _), share in zip(parts[1:], shares[1:]):
        out = out + part * (share / everything).to(q.dtype)
    return out


def by_torch(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, scale: float, dropout: float) -> Tensor:
    """Every query with every key that may be read, by torch's fused kernel: the mask is one row for all queries."""
    mask = blocked(keep, q)
    assert mask is not None
    mask = mask.to(q.dtype).clamp_min(torch.finfo(q.dtype).min / 2)  # finite: a row with nothing to read is not NaN
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    alive = keep.any(-1)[..., None, None]
    return out.masked_fill(~(alive[:, None] if keep.dim() == 2 else alive), 0.0)


def _source(q: Tensor, source: "KeySource", scale: float, dropout: float) -> _Part:
    layout, queries, keys = source.layout, q.shape[2], source.k.shape[2]
    step = None if source.extra is not None else layout.step
    rows = queries
    if step is not None:
        rows = max(1, PIECE // (q.shape[0] * q.shape[1] * layout.width(keys)) // step) * step
    parts = []
    for begin in range(0, queries, rows):
        end = min(begin + rows, queries)
        own, read = (layout, slice(0, keys)) if rows >= queries else layout.part(begin, end, queries, keys)
        keep = None if source.keep is None else source.keep[..., read]
        given = (
            own, q[:, :, begin:end], source.k[:, :, read], source.v[:, :, read],
            keep, source.bias, source.extra, scale, dropout,
        )  # fmt: skip
        if torch.is_grad_enabled():
            parts.append(checkpoint(_piece, *given, use_reentrant=False, preserve_rng_state=bool(dropout)))
        else:
            parts.append(_piece(*given))
    if len(parts) == 1:
        return parts[0]
    out, most, total = (torch.cat(same, 2) for same in zip(*parts))
    return out, most, total


def _piece(
    layout: Layout,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    bias: Tensor | None,
    extra: Tensor | None,
    scale: float,
    dropout: float,
) -> _Part:
    scores = add(layout.scores(q, k, keep, bias, scale), extra)
    most = scores.detach().amax(-1, keepdim=True)  # no result depends on it
    weights = (scores - most).exp().masked_fill(scores < DEAD, 0.0)
    total = weights.sum(-1, keepdim=True)
    weights = drop((weights / (total + (most < DEAD))).to(v.dtype), dropout, training=bool(dropout))
    return layout.mix(weights, v), most, total


def numbers(q: Tensor, sources: Sequence["KeySource"]) -> int:
    """How many scores there are in all."""
    return q.shape[0] * q.shape[1] * q.shape[2] * sum(s.layout.width(s.k.shape[2]) for s in sources)


__all__ = ["attend", "by_torch", "numbers"]
