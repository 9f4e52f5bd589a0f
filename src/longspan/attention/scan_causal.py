"""The causal form, without prefix sums of n×m×d numbers.

1. Cut the sequence in chunks, and take a block of chunks at a time.
2. Chunk states U_g = φ(k_g)ᵀ·v_g by one batched product; what they add up to before each chunk is its state S_g.
3. out_g = tril(φ(q_g)·φ(k_g)ᵀ)·v_g + φ(q_g)·S_g, divided by the last column.
4. The backward takes the blocks in reverse, each from the state saved before it, with features computed again. The
   gradient on the state goes through the chunks the other way by the recurrence of step 2.

The loop-free form takes the whole sequence as one block.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from longspan.attention.features import Rows
from longspan.attention.scan_rows import (
    Column,
    Hidden,
    Offset,
    Plan,
    Sums,
    TotalRows,
    ValueRows,
    Weights,
    Work,
    Workspace,
    block_length,
    blocks,
    columns,
    full_precision,
    gradient_rows,
    inverse_of,
    key_rows,
    no_buffer,
    query_rows,
    weigh,
    with_ones,
)
from longspan.shapes import Keys, Output, Queries, Values

# By chunk: the chunks of a block, of all heads of all examples, in one axis.
ChunkFeatures = Float[Tensor, "chunks rows features"]
ChunkValues = Float[Tensor, "chunks rows columns"]
ChunkSums = Float[Tensor, "chunks features columns"]
FoldedSums = Float[Tensor, "folded chunks_of_each features columns"]


class Block(NamedTuple):
    """Steps 1 and 2: what a block is made of, by chunk, and the state that it leaves."""

    queries: ChunkFeatures
    keys: ChunkFeatures
    values: ChunkValues
    before: ChunkSums
    after: Sums
    weights: Weights | None
    scale: Column | None  # log of what the products of queries and keys were divided by; None: of no interest
    offset: Offset  # that of `after`


def block_of(
    plan: Plan,
    x: Rows,
    y: Rows,
    z: ValueRows,
    hidden: Hidden | None,
    sums: Sums,
    offset: Offset,
    work: Work,
    *,
    still: bool = False,
    limit: int | None = None,
) -> Block:
    folded, length, _ = x.shape
    chunk = plan.chunk if limit is not None else min(plan.chunk, length)
    count = length // chunk
    drop = plan.drop(length, limit)
    queries, own = query_rows(plan, x, work)
    keys, level, scale = key_rows(plan, y, hidden, offset, drop, work, still=still)
    weights = weigh(plan, level, offset, chunk)
    values = with_ones(plan, z, work)

    queries, keys, values = (rows.reshape(folded * count, chunk, rows.shape[2]) for rows in (queries, keys, values))
    leaving = values if weights is None else values * weights.leave
    before, after = chunk_states(keys, leaving, sums, weights, work)
    both = None if own is None or scale is None else own + scale
    return Block(
        queries, keys, values, before, after, weights, both, offset if scale is None else scale[:, -1:].clone()
    )


def chunk_states(
    keys: ChunkFeatures, leaving: ChunkValues, sums: Sums, weights: Weights | None, work: Work
) -> tuple[ChunkSums, Sums]:
    """Step 2: the state before each chunk, and after the last."""
    folded, chunks = sums.shape[0], keys.shape[0]
    if work is not no_buffer and chunks == folded:  # a chunk each, as in decoding: nothing to run through
        kept = sums if weights is None else sums * weights.keep[:, 0]
        return sums, torch.baddbmm(kept, keys.mT, leaving)
    states = torch.bmm(keys.mT, leaving, out=work("states", chunks, *sums.shape[1:]))
    by_chunk, buffer = states.unflatten(0, (folded, chunks // folded)), work("before", *states.shape)
    return mixed(sums, by_chunk, weights) if buffer is None else running(sums, by_chunk, weights, buffer)


def running(
    first: Sums, states: FoldedSums, weights: Weights | None, out: ChunkSums, *, backwards: bool = False
) -> tuple[ChunkSums, Sums]:
    """The state that each chunk finds, and the one that the last leaves. `first` is what the first one finds."""
    found, last = out.view(states.shape), first.clone()
    order = range(states.shape[1])
    for chunk in reversed(order) if backwards else order:
        found[:, chunk] = last
        if weights is not None:
            last.mul_(weights.keep[:, chunk])
        last.add_(states[:, chunk])
    return out, last


def mixed(first: Sums, states: FoldedSums, weights: Weights | None) -> tuple[ChunkSums, Sums]:
    """The same without a loop."""
    states = torch.cat([first.unsqueeze(1), states], 1)
    if weights is None:
        states = states.cumsum(1)
    else:
        # A sum in one common scale would underflow, so every state weighs those before it in its own.
        mix = (weights.ends.mT - weights.ends).exp().tril().to(states.dtype)
        states = torch.bmm(mix, states.flatten(2)).unflatten(2, states.shape[2:])
    return states[:, :-1].flatten(0, 1), states[:, -1]


def within(
    left: ChunkFeatures, right: ChunkFeatures, weights: Weights | None, out: Tensor | None
) -> Float[Tensor, "chunks rows rows"]:
    """Products of the rows of a chunk with the rows up to them."""
    products = torch.bmm(left, right.mT, out=out)
    if weights is not None:
        products = products.mul_(weights.inner)
    return products.tril_() if products.shape[1] > 1 else products


def totals(block: Block, work: Work) -> TotalRows:
    """Step 3, all but the division."""
    queries, keys, values, weights = block.queries, block.keys, block.values, block.weights
    total = torch.bmm(queries, block.before, out=work("total", *values.shape))
    if weights is not None:
        total = total.mul_(weights.carry)
    products = within(queries, keys, weights, work("products", *queries.shape[:2], keys.shape[1]))
    total = torch.baddbmm(total, products, values, out=work("total", *values.shape))
    folded = block.after.shape[0]
    return total.view(folded, total.shape[0] // folded * total.shape[1], total.shape[2])


class Tape(NamedTuple):
    """What the backward needs besides the inputs and the output."""

    inverses: Column | None
    starts: list[Sums]
    offsets: list[Offset]


def sizes_of(plan: Plan, length: int, folded: int, columns: int) -> list[int]:
    """Step 1: blocks of whole chunks; what is left over is a block, and a chunk, of its own."""
    step, rest = block_length(plan, folded, columns), length % plan.chunk
    sizes = [min(step, length - rest - start) for start in range(0, length - rest, step)]
    return [*sizes, rest] if rest else sizes


def forward(
    plan: Plan, q: Queries, k: Keys, v: Values, hidden: Hidden | None, sums: Sums, offset: Offset, *, record: bool
) -> tuple[Output, Sums, Offset, Tape]:
    work = Workspace(q, plan.dtype)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    inverses = None
    if plan.normalise or plan.exponential:
        inverses = q.new_empty(sums.shape[0], q.shape[2], 1, dtype=plan.dtype)
    tape = Tape(inverses, [], [])
    sizes = sizes_of(plan, q.shape[2], sums.shape[0], sums.shape[2])
    rows = (blocks(x, sizes, plan.dtype) for x in (q, k, v))
    for x, y, z, masked, output, inverse in zip(
        *rows, *(columns(x, sizes) for x in (hidden, out.flatten(0, 1), inverses))
    ):
        if record:
            tape.starts.append(sums)
            tape.offsets.append(offset)
        block = block_of(plan, x, y, z, masked, sums, offset, work)
        sums, offset = block.after, block.offset
        total = totals(block, work)
        if inverse is None:
            output.copy_(total)
        else:
            inverse.copy_(inverse_of(plan, total, block.scale))
            torch.mul(total[..., : v.shape[3]], inverse, out=output)
    tape.offsets.append(offset)
    return out, sums, offset, tape


class Causal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, sums: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, after, offset, tape = forward(plan, q, k, v, hidden, sums, offset, record=True)
        ctx.save_for_backward(q, k, v, hidden, out, tape.inverses, torch.stack(tape.offsets), *tape.starts)
        ctx.plan = plan
        ctx.mark_non_differentiable(offset)
        ctx.set_materialize_grads(False)
        return out, after, offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, after: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        with full_precision(ctx.saved_tensors[0]):
            return backward(ctx.plan, ctx.saved_tensors, gradient, after)


def backward(
    plan: Plan, saved: tuple[Any, ...], gradient: Tensor | None, after: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Step 4."""
    q, k, v, hidden, out, inverses, offsets, *starts = saved
    gradient = torch.zeros_like(out) if gradient is None else gradient
    after = torch.zeros_like(starts[0]) if after is None else after
    work = Workspace(q, plan.dtype)
    results = [x.new_empty(x.shape) for x in (q, k, v)]
    sizes = sizes_of(plan, q.shape[2], starts[0].shape[0], starts[0].shape[2])
    rows = (blocks(x, sizes, plan.dtype, backwards=True) for x in (q, k, v, gradient, out))
    more = (columns(x, sizes, backwards=True) for x in (inverses, hidden, *(x.flatten(0, 1) for x in results)))
    found = zip(reversed(starts), offsets[:-1].flip(0), offsets[1:].flip(0))
    for x, y, z, slope, output, inverse, masked, dx, dy, dz, (sums, offset, end) in zip(*rows, *more, found):
        block = block_of(plan, x, y, z, masked, sums, offset, work, still=torch.equal(offset, end))
        slope = gradient_rows(plan, slope, output, inverse, work)
        dqueries, dkeys, dvalues, after = pull_block(block, slope.reshape(block.values.shape), after, v.shape[3], work)
        queries, keys = (features.view(*x.shape[:2], plan.width) for features in (block.queries, block.keys))
        plan.pull_queries(x, queries, dqueries.view(queries.shape), dx)
        plan.feature_map.pull(y, keys, dkeys.view(keys.shape), dy)
        dz.copy_(dvalues.view(dz.shape))
        if masked is not None:
            dy.masked_fill_(masked, 0.0)
    return None, *results, None, after, None


def pull_block(
    block: Block, slope: ChunkValues, after: Sums, value_dim: int, work: Workspace
) -> tuple[ChunkFeatures, ChunkFeatures, Float[Tensor, "chunks rows value_dim"], Sums]:
    """Gradients on queries, keys and values of a block and on the state before it, from those on totals and state."""
    queries, keys, values, before, _, weights, _, _ = block
    products = within(queries, keys, weights, work("products", *queries.shape[:2], keys.shape[1]))
    slopes = within(slope, values, weights, work("slopes", *products.shape))
    carried, leaving = (slope, values) if weights is None else (slope * weights.carry, values * weights.leave)
    states = torch.bmm(queries.mT, carried, out=work("states", *before.shape)).unflatten(0, (after.shape[0], -1))
    later, after = running(after, states, weights, work("later", *before.shape), backwards=True)

    dqueries = torch.bmm(carried, before.mT, out=work("dqueries", *queries.shape))
    torch.baddbmm(dqueries, slopes, keys, out=dqueries)
    dkeys = torch.bmm(leaving, later.mT, out=work("dkeys", *keys.shape))
    torch.baddbmm(dkeys, slopes.mT, queries, out=dkeys)
    # The appended column of ones takes no gradient.
    slope, later = slope[..., :value_dim], later[..., :value_dim]
    dvalues = torch.bmm(keys, later, out=work("dvalues", *slope.shape))
    if weights is not None:
        dvalues.mul_(weights.leave)
    torch.baddbmm(dvalues, products.mT, slope, out=dvalues)
    return dqueries, dkeys, dvalues, after


def batched(
    plan: Plan, q: Queries, k: Keys, v: Values, hidden: Hidden | None, sums: Sums, offset: Offset
) -> tuple[Output, Sums, Offset]:
    """The loop-free form, for graphs and for maps that autograd has to see."""
    # Padding and its removal go by index, not by slices, and there are two chunks at least: whatever compares one size
    # with another, or with 1, would tie a graph of dynamic length to the length it was made with.
    length = q.shape[2]
    padded = torch.arange((length + 2 * plan.chunk - 1) // plan.chunk * plan.chunk, device=q.device)
    source = padded.clamp(max=length - 1)
    x, y, z = (rows.to(plan.dtype).flatten(0, 1).index_select(1, source) for rows in (q, k, v))
    beyond = (padded >= length).view(1, -1, 1).expand(sums.shape[0], -1, 1)
    hidden = beyond if hidden is None else beyond | hidden.index_select(1, source)
    block = block_of(plan, x, y, z, hidden, sums, offset, no_buffer, limit=length)
    total = totals(block, no_buffer)
    inverse = inverse_of(plan, total, block.scale)
    out = total[..., : v.shape[3]]
    out = (out if inverse is None else out * inverse).index_select(1, torch.arange(length, device=q.device))
    return out.unflatten(0, q.shape[:2]).to(q.dtype), block.after, block.offset
