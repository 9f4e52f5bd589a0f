"""Softmax over a window and linear attention to all older keys, under one normaliser (LoLCATs).

Queries are cut into chunks. A chunk reads its own keys and a context of keys before it, at least as long as the window,
pair by pair; of those, keys outside the window weigh φ(q)·φ(k). Keys before the context are read through the state
Σ φ(k)[v, 1]ᵀ. Sinks are a few more columns of the softmax.

A block of chunks is computed at a time. The backward pass takes the blocks in reverse, each from the state before it,
and recomputes them: it keeps nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.devices import traced
from longspan.attention.parts.hedgehog_features import hedgehog
from longspan.attention.state import is_number
from longspan.derivatives import Function, twice_differentiable

CHUNK, SHORT = 64, 32  # queries of a chunk; short chunks where windows and states are small
BLOCK_NUMBERS = 2**19  # scores of a block; the backward pass holds some ten tensors of this size

Sums = Float[Tensor, "batch heads features columns"]  # Σ φ(k)[v, 1]ᵀ


@dataclass(frozen=True)
class HybridPlan:
    """What all blocks share."""

    span: int  # keys of the window, the query's own included; 0: no softmax at all
    scale: float  # of the scores
    linear: bool  # whether keys outside the window are read
    past: int  # keys before the first query
    first: int  # position of the first query in its text
    chunk: int = CHUNK  # queries of a chunk


class HybridInputs(NamedTuple):
    """All in one dtype, float32 at least."""

    q: Float[Tensor, "batch heads queries head_dim"]
    k: Float[Tensor, "batch heads keys head_dim"]  # `past` keys more than queries
    v: Float[Tensor, "batch heads keys value_dim"]
    sums: Sums | None  # of the keys before k; None: there are none
    query_map: Float[Tensor, "heads features head_dim"]
    key_map: Float[Tensor, "heads features head_dim"]
    factors: Float[Tensor, "two heads"]  # of the softmax part and of the linear part
    sink_k: Float[Tensor, "batch heads sinks head_dim"]
    sink_v: Float[Tensor, "batch heads sinks value_dim"]


class HybridMasks(NamedTuple):
    near: Bool[Tensor, "rows keys"]  # keys that may be read
    far: Bool[Tensor, "rows keys"]  # of those, keys that join the linear part once they are outside the window
    sinks: Int[Tensor, "rows sinks"]  # positions of the sinks


class Piece(NamedTuple):
    """A block: the queries from `begin` to `end`, padded to `chunks` chunks."""

    begin: int
    end: int
    chunks: int
    chunk: int
    context: int
    last: bool


def hybrid(plan: HybridPlan, inputs: HybridInputs, masks: HybridMasks) -> Tensor:
    """The output for all queries; rows with nothing to read are 0."""
    if traced(inputs.q):
        return _whole(plan, inputs, masks)
    out: Tensor = Hybrid.apply(plan, masks, *inputs)
    return out


def pieces_of(plan: HybridPlan, folded: int, length: int, value_dim: int) -> list[Piece]:
    """The blocks of a text; a short one is a single chunk without padding. `folded` is batch · heads."""
    if length <= plan.chunk:
        return [Piece(0, length, 1, length, plan.past, True)]
    context, chunk = _context(plan), plan.chunk
    most = BLOCK_NUMBERS // (folded * chunk * (context + chunk))
    # Enough that the states between blocks have at most half as many numbers as the features of the keys.
    step = chunk * max(1, most, -(-2 * (value_dim + 1) // chunk))
    borders = [(begin, min(begin + step, length)) for begin in range(0, length, step)]
    return [Piece(begin, end, -(-(end - begin) // chunk), chunk, context, end == length) for begin, end in borders]


def _context(plan: HybridPlan) -> int:
    """Keys before a chunk that its queries read pair by pair: whole chunks, as long as the window at least."""
    return -(-max(plan.span - 1, plan.past, 0) // plan.chunk) * plan.chunk


def chunk_of(span: int, features: int, value_dim: int) -> int:
    """The queries of a chunk. Half as many halve the pairs outside a short window, and double the states of chunks."""
    return SHORT if span - 1 <= SHORT and features * (value_dim + 1) <= SHORT * CHUNK else CHUNK


class Hybrid(Function):
    @staticmethod
    def forward(ctx: Any, plan: HybridPlan, masks: HybridMasks, *tensors: Tensor | None) -> Tensor:
        inputs = HybridInputs(*tensors)  # type: ignore[arg-type]
        sums, starts, outs = inputs.sums, [], []
        if plan.linear and sums is None and inputs.q.shape[2] > plan.chunk:
            sums = _no_sums(inputs)
        for piece in _pieces(plan, inputs):
            starts.append(sums)
            out, sums = _piece(plan, inputs._replace(sums=sums), masks, piece)
            outs.append(out)
        ctx.save_for_backward(*tensors, *masks, *starts)
        ctx.plan = plan
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2)

    @staticmethod
    @twice_differentiable(lambda ctx, saved: _recompute(ctx, saved))
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: activation checkpointing yields each saved tensor a single time
        inputs, masks, starts = HybridInputs(*saved[:9]), HybridMasks(*saved[9:12]), saved[12:]
        plan: HybridPlan = ctx.plan
        results = [None if x is None else torch.zeros_like(x) for x in inputs]
        after: Tensor | None = None
        for piece, sums in reversed(list(zip(_pieces(plan, inputs), starts))):
            rows, keys = slice(piece.begin, piece.end), _keys_of(plan, piece)
            cuts = (rows, keys, keys)
            parts = [inputs.q[:, :, rows], inputs.k[:, :, keys], inputs.v[:, :, keys], sums, *inputs[4:]]
            with torch.enable_grad():
                leaves = [None if x is None else x.detach().requires_grad_() for x in parts]
                out, end = _padded(plan, HybridInputs(*leaves), masks, piece)  # type: ignore[arg-type]
            wanted = {index: leaf for index, leaf in enumerate(leaves) if leaf is not None}
            outputs, slopes = [out], [slope[:, :, rows]]
            if end is not None and after is not None:
                outputs, slopes = [out, end], [slope[:, :, rows], after]
            gradients: Sequence[Tensor | None] = torch.autograd.grad(
                outputs, list(wanted.values()), slopes, allow_unused=True
            )
            after = None
            for (index, _), gradient in zip(wanted.items(), gradients):
                result = results[index]
                if index == 3:
                    after = gradient
                elif gradient is not None and result is not None:
                    (result[:, :, cuts[index]] if index < 3 else result).add_(gradient)
        results[3] = None if inputs.sums is None else after
        return None, None, *results


def _recompute(ctx: Any, saved: Sequence[Any]) -> tuple[Tensor, Sequence[Tensor | None]]:
    inputs = HybridInputs(*saved[:9])
    return _whole(ctx.plan, inputs, HybridMasks(*saved[9:12])), (None, None, *inputs)


def _pieces(plan: HybridPlan, inputs: HybridInputs) -> list[Piece]:
    batch, heads, length, _ = inputs.q.shape
    return pieces_of(plan, batch * heads, length, inputs.v.shape[3])


def _keys_of(plan: HybridPlan, piece: Piece) -> slice:
    """The keys that a block reads pair by pair, context included."""
    return slice(max(0, piece.begin - piece.context + plan.past), piece.end + plan.past)


def _no_sums(inputs: HybridInputs) -> Sums:
    batch, heads = inputs.q.shape[:2]
    return inputs.q.new_zeros(batch, heads, 2 * inputs.key_map.shape[1], inputs.v.shape[3] + 1)


def _piece(plan: HybridPlan, inputs: HybridInputs, masks: HybridMasks, piece: Piece) -> tuple[Tensor, Sums | None]:
    keys = _keys_of(plan, piece)
    q, k, v = inputs.q[:, :, piece.begin : piece.end], inputs.k[:, :, keys], inputs.v[:, :, keys]
    return _padded(plan, inputs._replace(q=q, k=k, v=v), masks, piece)


def _padded(plan: HybridPlan, inputs: HybridInputs, masks: HybridMasks, piece: Piece) -> tuple[Tensor, Sums | None]:
    """A block from its own queries and keys, padded to whole chunks."""
    keys, rows = _keys_of(plan, piece), piece.end - piece.begin
    right = piece.chunks * piece.chunk - rows
    left = piece.context + rows - inputs.k.shape[2]
    near, far = masks.near[:, keys], masks.far[:, keys]
    q, k, v = inputs.q, inputs.k, inputs.v
    if left or right:
        q = pad(q, (0, 0, 0, right))
        k, v = (pad(x, (0, 0, left, right)) for x in (k, v))
        near, far = (pad(x, (left, right)) for x in (near, far))
    padded = inputs._replace(q=q, k=k, v=v)
    out, after = _block(plan, padded, HybridMasks(near, far, masks.sinks), piece)
    return out[:, :, :rows].clone() if right else out, after  # a view would keep the padding alive


def _whole(plan: HybridPlan, inputs: HybridInputs, masks: HybridMasks) -> Tensor:
    """All at once, for traced graphs and second derivatives.

    Padding is by index, as in `linear_scan.causal.batched`, and there are two spare chunks: comparing a size, also
    that of the chunks before the last with 1, would specialise a graph of dynamic length.
    """
    length, device = inputs.q.shape[2], inputs.q.device
    if (type(length) is int or not torch.compiler.is_exporting()) and length <= plan.chunk:
        return _block(plan, inputs, masks, Piece(0, length, 1, length, plan.past, True))[0]
    chunk, context = plan.chunk, _context(plan)
    count = (length + 3 * chunk - 1) // chunk
    row = torch.arange(count * chunk, device=device)
    column = torch.arange(context + count * chunk, device=device) - context + plan.past
    there = (column >= 0) & (column < length + plan.past)
    column = column.clamp(0, length + plan.past - 1)
    k, v = (x.index_select(2, column) for x in (inputs.k, inputs.v))
    near, far = (x.index_select(1, column) & there for x in (masks.near, masks.far))
    q = inputs.q.index_select(2, row.clamp(max=length - 1))
    sums = _no_sums(inputs) if inputs.sums is None and plan.linear else inputs.sums
    piece = Piece(0, length, count, chunk, context, True)
    padded = inputs._replace(q=q, k=k, v=v, sums=sums)
    out, _ = _block(plan, padded, HybridMasks(near, far, masks.sinks), piece)
    return out.index_select(2, torch.arange(length, device=device))


def _block(plan: HybridPlan, inputs: HybridInputs, masks: HybridMasks, piece: Piece) -> tuple[Tensor, Sums | None]:
    """The outputs of whole chunks, and the sums of all keys that the next block does not read pair by pair."""
    chunk, wide = piece.chunk, piece.context + piece.chunk  # queries of a chunk, and keys that they read pair by pair
    q, count = inputs.q.unflatten(2, (piece.chunks, chunk)), piece.chunks
    device = inputs.q.device
    distance = torch.arange(piece.context, wide, device=device)[:, None] - torch.arange(wide, device=device)
    soft, linear = (factor[:, None, None, None] for factor in inputs.factors)
    sinks, parts, beside = inputs.sink_k.shape[2] if plan.span else 0, [], None
    if plan.span:
        scores = (q @ inputs.k.unfold(2, wide, chunk)) * plan.scale
        keep = masks.near.unfold(1, wide, chunk)[:, None, :, None] & (distance >= 0) & (distance < plan.span)
        scores = scores.masked_fill(~keep, -math.inf)
        if sinks:
            beside = (inputs.q @ inputs.sink_k.mT * plan.scale).unflatten(2, (count, chunk))
            at = torch.arange(count * chunk, device=device).view(1, count, chunk, 1) + (plan.first + piece.begin)
            older = at - masks.sinks[:, None, None] >= plan.span
            scores = torch.cat([scores, beside.masked_fill(~older[:, None], -math.inf)], -1)
        largest = scores.amax(-1, keepdim=True)
        scores = soft * (scores - largest.masked_fill(largest == -math.inf, 0.0)).exp()
        beside = scores[..., wide:] if sinks else None
        parts.append(scores[..., :wide] if sinks else scores)
    reach = max(0, wide - plan.span) if plan.linear else 0  # columns that some query has outside its window
    states = plan.linear and inputs.sums is not None
    out, total = inputs.v.new_zeros(()), inputs.v.new_zeros(())
    after = None
    if reach or states:
        queries = hedgehog(inputs.q, inputs.query_map, False).unflatten(2, (count, chunk)) * linear
        # Sizes of a dynamic graph are not compared. The last chunk's keys leave for the next block only.
        leaves = states and not (piece.last and is_number(count, 1))
        before_last = (count - 1) * chunk
        leaving = before_last if piece.last else before_last + chunk
        rows = before_last + max(reach, chunk if leaves and not piece.last else 0)
        keys = hedgehog(inputs.k[:, :, :rows], inputs.key_map, False) if reach or leaves else queries
        if reach or leaves:
            keys = keys * masks.far[:, None, :rows, None]
        if reach:
            products = queries @ keys[:, :, : before_last + reach].unfold(2, reach, chunk)
            products = products * (distance[:, :reach] >= plan.span)
            parts.append(pad(products, (0, wide - reach)))
        if states:
            assert inputs.sums is not None
            before = inputs.sums[:, :, None]
            if leaves:
                values = pad(inputs.v[:, :, :leaving], (0, 1), value=1.0).unflatten(2, (-1, chunk))
                each = keys[:, :, :leaving].unflatten(2, (-1, chunk)).mT @ values
                before = torch.cat([before, each], 2).cumsum(2)
            if not piece.last:
                after, before = before[:, :, -1], before[:, :, :-1]
            past = queries @ before
            out, total = past[..., :-1], past[..., -1:]
    weights = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    out = out + weights @ inputs.v.unfold(2, wide, chunk).mT
    total = total + weights.sum(-1, keepdim=True)
    if beside is not None:
        out = out + (beside.flatten(2, 3) @ inputs.sink_v).unflatten(2, (count, chunk))
        total = total + beside.sum(-1, keepdim=True)
    return (out / total.masked_fill(total == 0, 1.0)).flatten(2, 3), after


def add_keys(sums: Sums, k: Tensor, v: Tensor, far: Tensor, key_map: Tensor) -> Sums:
    """The sums with further keys."""
    keys = hedgehog(k, key_map, False) * far[:, None, :, None]
    return sums + keys.mT @ pad(v.to(keys.dtype), (0, 1), value=1.0)


def flops(plan: HybridPlan, length: int, heads: int, head_dim: int, value_dim: int, features: int, sinks: int) -> int:
    """FLOPs of the matrix products in one sequence's forward pass; `features` are those of a key, twice W's rows."""
    total, pieces = 0, pieces_of(plan, heads, length, value_dim)
    states = plan.linear and length > plan.chunk
    for piece in pieces:
        rows, wide = piece.chunks * piece.chunk, piece.context + piece.chunk
        total += 2 * rows * wide * value_dim
        if plan.span:
            total += 2 * rows * (wide * head_dim + sinks * (head_dim + value_dim))
        reach = max(0, wide - plan.span) if plan.linear else 0
        if not reach and not states:
            continue
        leaving = rows - piece.chunk * piece.last if states else 0
        keys = max(leaving, rows - piece.chunk + reach if reach else 0)
        total += (rows + keys) * head_dim * features
        total += 2 * rows * reach * features
        if states:
            total += 2 * (leaving + rows) * features * (value_dim + 1)
    return heads * total


def kept(plan: HybridPlan, length: int, heads: int, value_dim: int, features: int) -> int:
    """Numbers stored for one sequence's backward pass beyond the inputs: the states between blocks."""
    pieces = pieces_of(plan, heads, length, value_dim)
    return heads * len(pieces) * features * (value_dim + 1) if plan.linear and length > plan.chunk else 0


__all__ = ["CHUNK", "HybridInputs", "HybridMasks", "HybridPlan", "add_keys", "chunk_of", "flops", "hybrid", "kept"]
