"""One softmax over several sources of keys.

`joint` takes the queries and a list of sources, each with a layout, and normalises over the keys of all sources at
once. It has two implementations, which the tests compare:

- plain: concatenate the scores of all sources, take one softmax, split the weights again. For compilers, and for
  whatever the fused kernel cannot do (learned biases, other devices) while the scores are few. If they are many,
  `query_chunks` does the same a chunk of queries at a time, and recomputes it in the backward pass.
- fused: each source p gives its output and log-sum-exp, merged as Σ_p exp(lse_p - lse) out_p. In the backward pass
  every source gets the merged output and log-sum-exp: its weights are exp(score - lse), so its fused backward gives
  its exact share of the gradients. Only q, k, v, out and lse are stored.

A `sink` is one more logit in the denominator of each row, without a value (gpt-oss): o·σ(lse - sink), so it only
changes the merged output and log-sum-exp. A `softcap` c turns each score s into c·tanh(s/c) (Gemma 2): plain only.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad

from longspan.attention.kernels import flash, query_chunks
from longspan.attention.kernels.flash import BLOCKED, DEAD
from longspan.attention.kernels.flash_dropout import AttentionDropout
from longspan.attention.layouts import Dense, Layout
from longspan.attention.layouts.base import add, cap, share_keys
from longspan.derivatives import Function, refuse_second, twice_differentiable
from longspan.errors import Unsupported

# Above this, the log-sum-exp of a row is computed in float64. In float32 its rounding, 2⁻¹² at this size, would change
# the weights of the row by more than that: sources merged at 10⁶ would be off by a tenth.
LARGE = 1 << 12
FEW_QUERIES = 16  # up to so many, keys that are not as wide as values are not padded for the fused kernel
FEW = 1 << 20  # most scores that the plain implementation may store for the backward pass


@dataclass(frozen=True)
class KeySource:
    """Keys and values, and the layout that says which of them each query reads.

    If there are fewer heads of keys than of queries, consecutive query heads share one, which is not repeated.
    """

    layout: Layout
    k: Tensor
    v: Tensor
    keep: Tensor | None = None  # (batch, keys): True for keys that may be read
    bias: Tensor | None = None  # (heads, offsets)
    extra: Tensor | None = None  # added to the scores, in their layout; rules the fused kernel out
    q: Tensor | None = None  # queries for this source alone, instead of those that all sources share

    def __post_init__(self) -> None:
        if self.bias is not None and not self.layout.takes_bias:
            raise Unsupported(f"{type(self.layout).__name__} has no offsets, so it takes no bias")

    def queries(self, q: Tensor) -> Tensor:
        """Its own queries, or those that all sources share."""
        return q if self.q is None else self.q


@dataclass(frozen=True)
class WholeRows:
    """Queries that read every key of the first source, and nothing else, regardless of the layouts."""

    rows: Tensor  # (batch or 1, count): their positions
    real: Tensor  # of that shape: which entries are used; used positions are distinct

    def parts(self, batch: int) -> Iterator[tuple[slice, Tensor]]:
        """(sequences, positions of their rows)"""
        if self.rows.shape[0] == 1:
            yield slice(0, batch), self.rows[0][self.real[0]]
            return
        for sequence in range(batch):
            yield slice(sequence, sequence + 1), self.rows[sequence][self.real[sequence]]


def joint(
    q: Tensor,
    sources: Sequence[KeySource],
    *,
    scale: float,
    dropout: float = 0.0,
    whole: WholeRows | None = None,
    sink: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """softmax(scale · q kᵀ over the union of the sources) v; a row with nothing to read is 0.

    `sink` is (heads, queries or 1); neither it nor `softcap` goes with `whole`.
    """
    sources = [_shared(source, q) for source in sources]
    keys, values = sources[0].k.shape[-1], sources[0].v.shape[-1]
    fused = softcap is None and all(
        flash.fits(q, source.k, source.k)
        and source.extra is None
        and not (source.bias is not None and source.bias.requires_grad)
        for source in sources
    )
    if fused and keys != values:
        if q.shape[2] > FEW_QUERIES or torch.is_grad_enabled():
            return _widened(q, sources, max(keys, values), scale, dropout, whole, sink)[..., :values]
        fused = False  # decoding: padding would copy all keys for a few products
    if not fused:
        out = _unfused(q, sources, scale, dropout, sink, softcap)
        return out if whole is None else _plain_whole(out, q, sources[0], whole, scale, dropout)
    pairs = [tensor for source in sources for tensor in (source.k, source.v)]
    queries, plans = [q], []
    for source in sources:
        if source.q is not None:
            queries.append(source.q)
        row = 0 if source.q is None else len(queries) - 1
        plans.append(_Plan(source.layout, _unless_all(source.keep), source.bias, row))
    drops = AttentionDropout(dropout) if dropout else None
    fused_out: Tensor = _Fused.apply(plans, scale, whole, drops, sink, len(queries), *queries, *pairs)
    return fused_out


def _shared(source: KeySource, q: Tensor) -> KeySource:
    """The source with a layout for the query heads that share one head of its keys."""
    layout = share_keys(source.layout, q, source.k)
    return source if layout is source.layout else replace(source, layout=layout)


def _widened(
    q: Tensor,
    sources: Sequence[KeySource],
    width: int,
    scale: float,
    dropout: float,
    whole: WholeRows | None,
    sink: Tensor | None,
) -> Tensor:
    """`joint` with keys and values padded to one width, which the fused kernel needs."""
    wide = [
        replace(
            source,
            k=flash.widen(source.k, width),
            v=flash.widen(source.v, width),
            q=None if source.q is None else flash.widen(source.q, width),
        )
        for source in sources
    ]
    return joint(flash.widen(q, width), wide, scale=scale, dropout=dropout, whole=whole, sink=sink)


def _unless_all(keep: Tensor | None) -> Tensor | None:
    """None for a mask that hides nothing: all blocks can then share one mask tile."""
    return None if keep is None or bool(keep.all()) else keep


def _unfused(
    q: Tensor,
    sources: Sequence[KeySource],
    scale: float,
    dropout: float,
    sink: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Without the fused CPU kernel."""
    if torch.compiler.is_compiling():  # a loop over chunks would fix the length
        return _plain(q, sources, scale, dropout, sink, softcap)
    if q.is_cuda and sink is None and softcap is None and len(sources) == 1:
        (source,) = sources
        whole = source.layout == share_keys(Dense(), q, source.k)
        if whole and source.keep is not None and source.extra is None and source.bias is None:
            return query_chunks.masked_sdpa(q, source.k, source.v, source.keep, scale, dropout)
    if query_chunks.score_count(q, sources) <= FEW:
        return _plain(q, sources, scale, dropout, sink, softcap)
    return query_chunks.attend(q, sources, scale, dropout, sink, softcap)


def _plain(
    q: Tensor,
    sources: Sequence[KeySource],
    scale: float,
    dropout: float,
    sink: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    parts = [cap(add(s.layout.scores(s.queries(q), s.k, s.keep, s.bias, scale), s.extra), softcap) for s in sources]
    scores = torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
    if sink is None:
        weights = scores.softmax(dim=-1)
    else:
        column = sink.to(scores.dtype)[..., None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
    weights = weights.masked_fill(scores < DEAD, 0.0).to(q.dtype)
    weights = drop(weights, dropout, training=bool(dropout))
    pieces = weights.split([part.shape[-1] for part in parts], dim=-1)
    out = sources[0].layout.mix(pieces[0], sources[0].v)
    for source, piece in zip(sources[1:], pieces[1:]):
        out = out + source.layout.mix(piece, source.v)
    return out


def _plain_whole(out: Tensor, q: Tensor, source: KeySource, whole: WholeRows, scale: float, dropout: float) -> Tensor:
    """`out` with the rows of `whole` replaced."""
    length = q.shape[2]
    index = whole.rows.clamp_max(length - 1)[:, None, :, None].expand(*q.shape[:2], -1, q.shape[3])
    rows_out = _unfused(q.gather(2, index), [replace(source, layout=share_keys(Dense(), q, source.k))], scale, dropout)
    # Unused rows go to one position past the end, which is cut off again.
    index = torch.where(whole.real, whole.rows, length)[:, None, :, None].expand_as(rows_out)
    return pad(out, (0, 0, 0, 1)).scatter(2, index, rows_out)[:, :, :-1]


class _Plan(NamedTuple):
    layout: Layout
    keep: Tensor | None
    bias: Tensor | None
    queries: int  # which of the queries: 0 are those that sources share


def _recompute(ctx: Any, saved: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor | None]]:
    if ctx.dropout is not None:
        refuse_second("attention with dropout on its weights", "set that dropout to 0")
    _, _, sink, *tensors = saved
    queries, pairs = tensors[: ctx.count], tensors[ctx.count :]
    q = queries[0]
    sources = [
        KeySource(plan.layout, k, v, plan.keep, plan.bias, q=queries[plan.queries] if plan.queries else None)
        for plan, k, v in zip(ctx.plans, pairs[::2], pairs[1::2])
    ]
    out = _plain(q, sources, ctx.scale, 0.0, sink)
    out = out if ctx.whole is None else _plain_whole(out, q, sources[0], ctx.whole, ctx.scale, 0.0)
    return out, (None, None, None, None, sink, None, *queries, *pairs)


class _Fused(Function):
    @staticmethod
    def forward(
        ctx: Any,
        plans: Sequence[_Plan],
        scale: float,
        whole: WholeRows | None,
        dropout: AttentionDropout | None,
        sink: Tensor | None,
        count: int,
        *tensors: Tensor,
    ) -> Tensor:
        """`tensors` are `count` queries, then the keys and values of each source."""
        queries, pairs = tensors[:count], tensors[count:]
        q = queries[0]
        with nullcontext() if dropout is None else dropout.activate():
            out, lse = _merge(plans, scale, whole, queries, pairs)
        if q.dtype != torch.float64 and bool(lse.masked_fill(lse < DEAD, 0.0).abs().amax() > LARGE):
            with nullcontext() if dropout is None else dropout.activate():
                out, lse = _merge(plans, scale, whole, *([x.double() for x in some] for some in (queries, pairs)))
            out = out.to(q.dtype)
        if sink is not None:  # a row with nothing to read becomes 0 here: its log-sum-exp is far below any logit
            total = torch.logaddexp(lse, sink.to(lse.dtype))
            out, lse = out * (lse - total).exp().to(out.dtype)[..., None], total
        dead = lse < DEAD
        ctx.dead = dead if bool(dead.any()) else None
        if ctx.dead is not None:
            # Scores near BLOCKED minus a rounded log-sum-exp of that size are arbitrary; minus 0, the weights are 0.
            out, lse = out.masked_fill(dead[..., None], 0.0), lse.masked_fill(dead, 0.0)
        ctx.save_for_backward(out, lse, sink, *tensors)
        ctx.plans, ctx.scale, ctx.whole, ctx.dropout, ctx.count = plans, scale, whole, dropout, count
        return out

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        out, lse, sink, *tensors = ctx.saved_tensors
        g = g.contiguous() if ctx.dead is None else g.masked_fill(ctx.dead[..., None], 0.0)
        dtype = tensors[0].dtype
        if lse.dtype != torch.promote_types(dtype, torch.float32):  # scores are large, see `LARGE`
            g, out, *tensors = (x.double() for x in (g, out, *tensors))
        queries, pairs = tensors[: ctx.count], tensors[ctx.count :]
        with nullcontext() if ctx.dropout is None else ctx.dropout.activate():
            gradients = _gradients(ctx.plans, ctx.scale, ctx.whole, g, queries, out, lse, pairs)
        dsink = None if sink is None else _sink_gradient(sink, g, out, lse)
        return None, None, None, None, dsink, None, *(x.to(dtype) for x in gradients)


def _sink_gradient(sink: Tensor, g: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """d out / d sink = -(weight of the sink) · out."""
    slope = -(sink.to(lse.dtype) - lse).exp() * (g * out).sum(-1)
    return slope.sum_to_size(sink.shape).to(sink.dtype)


def _merge(
    plans: Sequence[_Plan], scale: float, whole: WholeRows | None, queries: Sequence[Tensor], pairs: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp over all sources."""
    out = lse = None
    q = queries[0]
    for (layout, keep, bias, row), k, v in zip(plans, pairs[::2], pairs[1::2]):
        source_out, source_lse = layout.forward(queries[row], k, v, keep, bias, scale)
        if out is None or lse is None:
            out, lse = source_out, source_lse
            continue
        total = torch.logaddexp(lse, source_lse)
        out = out.lerp_(source_out, (source_lse - total).exp().to(out.dtype)[..., None])  # the two shares sum to 1
        lse = total
    assert out is not None and lse is not None
    for sequences, rows, k, v, keep in _whole_parts(whole, plans, pairs):
        dense = share_keys(Dense(), q, k)
        rows_out, rows_lse = dense.forward(q[sequences].index_select(2, rows), k, v, keep, None, scale)
        out[sequences].index_copy_(2, rows, rows_out)
        lse[sequences].index_copy_(2, rows, rows_lse)
    return out, lse


def _gradients(
    plans: Sequence[_Plan],
    scale: float,
    whole: WholeRows | None,
    g: Tensor,
    queries: Sequence[Tensor],
    out: Tensor,
    lse: Tensor,
    pairs: Sequence[Tensor],
) -> list[Tensor]:
    """Gradients of the queries, and of the keys and values of each source."""
    # An infinite log-sum-exp makes all weights of a row 0, so the layouts skip the rows of `whole`.
    layout_lse = lse if whole is None else lse.clone()
    for sequences, rows, *_ in _whole_parts(whole, plans, pairs):
        layout_lse[sequences].index_fill_(2, rows, -BLOCKED)
    of_queries: dict[int, Tensor] = {}
    gradients: list[Tensor] = []
    for (layout, keep, bias, row), k, v in zip(plans, pairs[::2], pairs[1::2]):
        source_dq, dk, dv = layout.backward(g, queries[row], k, v, keep, bias, out, layout_lse, scale)
        of_queries[row] = of_queries[row].add_(source_dq) if row in of_queries else source_dq
        gradients += [dk, dv]
    q, dq = queries[0], of_queries[0]  # the first source has no queries of its own
    for sequences, rows, k, v, keep in _whole_parts(whole, plans, pairs):
        g_rows, q_rows, out_rows, lse_rows = (x[sequences].index_select(2, rows) for x in (g, q, out, lse))
        dense = share_keys(Dense(), q, k)
        dq_rows, dk, dv = dense.backward(g_rows, q_rows, k, v, keep, None, out_rows, lse_rows, scale)
        dq[sequences].index_copy_(2, rows, dq_rows)
        gradients[0][sequences].add_(dk)
        gradients[1][sequences].add_(dv)
    return [*(of_queries[row] for row in range(len(queries))), *gradients]


def _whole_parts(
    whole: WholeRows | None, plans: Sequence[_Plan], pairs: Sequence[Tensor]
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor | None]]:
    """(sequences, rows, and the keys, values and mask that they read)"""
    if whole is None:
        return
    k, v, keep = pairs[0], pairs[1], plans[0].keep
    for sequences, rows in whole.parts(k.shape[0]):
        yield sequences, rows, k[sequences], v[sequences], None if keep is None else keep[sequences]
