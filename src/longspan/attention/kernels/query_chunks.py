"""One softmax over several sources of keys with ordinary operations, on any device, a chunk of queries at a time.

Each source gives its output, the largest score of each row, and the sum of exponentials relative to that score. If the
layout can be split, queries go in chunks, which are recomputed in the backward pass, so that only inputs and outputs
are stored. Largest score and sum stay separate: where scores are large, a log-sum-exp would round the sum away.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from longspan.attention.kernels.flash import DEAD
from longspan.attention.layouts.base import Layout, add, blocked, cap

if TYPE_CHECKING:
    from longspan.attention.kernels.multi_source_softmax import KeySource

PIECE = 1 << 24  # scores of one chunk, over all sequences and heads

_PartialSoftmax = tuple[Tensor, Tensor, Tensor]  # output, largest score, sum of each row: (batch, heads, queries, …)


def attend(
    q: Tensor,
    sources: Sequence["KeySource"],
    scale: float,
    dropout: float,
    sink: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ over the union of the sources) v; a row with nothing to read is 0.

    `sink` and `softcap` as in `multi_source_softmax.joint`.
    """
    parts = [_source(q, source, scale, dropout, softcap) for source in sources]
    if len(parts) == 1 and sink is None:
        return parts[0][0]
    maximum = torch.stack([largest for _, largest, _ in parts]).amax(0)
    logit = None if sink is None else sink.to(maximum.dtype)[..., None]
    if logit is not None:
        maximum = torch.maximum(maximum, logit.detach())
    shares = [(largest - maximum).exp() * total for _, largest, total in parts]
    denominator = torch.stack(shares).sum(0)
    if logit is not None:
        denominator = denominator + (logit - maximum).exp()
    denominator = denominator + (maximum < DEAD)  # a row with nothing to read: 0 / 1
    out = parts[0][0] * (shares[0] / denominator).to(q.dtype)
    for (part, _, _), share in zip(parts[1:], shares[1:]):
        out = out + part * (share / denominator).to(q.dtype)
    return out


def masked_sdpa(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, scale: float, dropout: float) -> Tensor:
    """Every query with every key that may be read, by torch's fused kernel; one mask row serves all queries."""
    mask = blocked(keep, q)
    assert mask is not None
    mask = mask.to(q.dtype).clamp_min(torch.finfo(q.dtype).min / 2)  # finite: a row with nothing to read is not NaN
    grouped = k.shape[1] != q.shape[1]
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=grouped)
    alive = keep.any(-1)[..., None, None]
    return out.masked_fill(~(alive[:, None] if keep.dim() == 2 else alive), 0.0)


def _source(
    q: Tensor, source: "KeySource", scale: float, dropout: float, softcap: float | None = None
) -> _PartialSoftmax:
    q = source.queries(q)
    layout, queries, keys = source.layout, q.shape[2], source.k.shape[2]
    step = None if source.extra is not None else layout.step
    rows = queries
    if step is not None:
        rows = max(1, PIECE // (q.shape[0] * q.shape[1] * layout.width(keys)) // step) * step
    chunks: list[_PartialSoftmax] = []
    for begin in range(0, queries, rows):
        end = min(begin + rows, queries)
        chunk_layout, read = (layout, slice(0, keys)) if rows >= queries else layout.part(begin, end, queries, keys)
        keep = None if source.keep is None else source.keep[..., read]
        arguments = (
            chunk_layout, q[:, :, begin:end], source.k[:, :, read], source.v[:, :, read],
            keep, source.bias, source.extra, scale, dropout, softcap,
        )  # fmt: skip
        if torch.is_grad_enabled():
            chunks.append(checkpoint(_chunk, *arguments, use_reentrant=False, preserve_rng_state=bool(dropout)))
        else:
            chunks.append(_chunk(*arguments))
    if len(chunks) == 1:
        return chunks[0]
    out, largest, total = (torch.cat(same, 2) for same in zip(*chunks))
    return out, largest, total


def _chunk(
    layout: Layout,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    bias: Tensor | None,
    extra: Tensor | None,
    scale: float,
    dropout: float,
    softcap: float | None,
) -> _PartialSoftmax:
    scores = cap(add(layout.scores(q, k, keep, bias, scale), extra), softcap)
    largest = scores.detach().amax(-1, keepdim=True)  # the result does not depend on it
    weights = (scores - largest).exp().masked_fill(scores < DEAD, 0.0)
    total = weights.sum(-1, keepdim=True)
    weights = drop((weights / (total + (largest < DEAD))).to(v.dtype), dropout, training=bool(dropout))
    return layout.mix(weights, v), largest, total


def score_count(q: Tensor, sources: Sequence["KeySource"]) -> int:
    """The number of scores over all sequences, heads and sources."""
    return q.shape[0] * q.shape[1] * q.shape[2] * sum(s.layout.width(s.k.shape[2]) for s in sources)


__all__ = ["attend", "masked_sdpa", "score_count"]
