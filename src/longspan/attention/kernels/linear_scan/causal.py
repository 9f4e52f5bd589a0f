"""Causal linear attention in chunks, without prefix sums of n×m×d numbers.

1. Cut the sequence into chunks, and process a block of chunks at a time.
2. Chunk states U_g = φ(k_g)ᵀ·v_g by one batched product; their sum before each chunk is its state S_g.
3. out_g = tril(φ(q_g)·φ(k_g)ᵀ)·v_g + φ(q_g)·S_g, divided by the same sums with 1 for v_g.
4. The backward pass takes the blocks in reverse, each from the state saved before it, and recomputes the features. The
   gradient of the state runs through the chunks in reverse by the recurrence of step 2.

The loop-free form, `batched`, takes the whole sequence as one block.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.attention.devices import host_may_read
from longspan.attention.kernels.linear_scan.rows import (
    Column,
    Hidden,
    Offset,
    ScanPlan,
    ValueRows,
    Weights,
    Work,
    Workspace,
    block_length,
    blocks,
    columns,
    gradient_rows,
    inverse_of,
    key_rows,
    no_buffer,
    query_rows,
    weigh,
)
from longspan.attention.parts.features import Rows
from longspan.derivatives import Function, twice_differentiable
from longspan.precision import full_precision
from longspan.shapes import Keys, Output, Queries, Values

# One axis holds the chunks of a block, of all heads of all sequences.
ChunkFeatures = Float[Tensor, "chunks rows features"]
ChunkValues = Float[Tensor, "chunks rows value_dim"]
ChunkColumn = Float[Tensor, "chunks rows 1"]
WholeSums = Float[Tensor, "folded features columns"]  # as in `ScanState`: if normalised, z is the last column of S


class CausalSums(NamedTuple):
    """The state of the past, for every head, or before every chunk of a block.

    z is separate from S: products 65 numbers wide take a quarter longer than products 64 wide.
    """

    values: Float[Tensor, "folded features value_dim"]  # S
    ones: Float[Tensor, "folded 1 features"] | None  # z, if normalised; a row, as products with a column are slow

    @classmethod
    def of(cls, plan: ScanPlan, sums: WholeSums) -> "CausalSums":
        return cls(sums[..., :-1], sums[..., -1:].mT) if plan.normalise else cls(sums, None)

    def whole(self) -> WholeSums:
        return self.values if self.ones is None else torch.cat([self.values, self.ones.mT], -1)


class ScanBlock(NamedTuple):
    """Steps 1 and 2: the rows of a block by chunk, and the states before and after."""

    queries: ChunkFeatures
    keys: ChunkFeatures
    values: ChunkValues
    before: CausalSums  # for every chunk
    after: CausalSums
    weights: Weights | None
    scale: Column | None  # log of the factor that products of queries and keys were divided by; None if not needed
    offset: Offset  # of `after`


def block_of(
    plan: ScanPlan,
    x: Rows,
    y: Rows,
    z: ValueRows,
    hidden: Hidden | None,
    sums: CausalSums,
    offset: Offset,
    work: Work,
    *,
    still: bool = False,
    limit: int | None = None,
) -> ScanBlock:
    folded, length, _ = x.shape
    chunk = plan.chunk if limit is not None else min(plan.chunk, length)
    count = length // chunk
    drop = plan.drop(length, limit)
    queries, query_scale = query_rows(plan, x, work)
    keys, level, scale = key_rows(plan, y, hidden, offset, drop, work, still=still)
    weights = weigh(plan, level, offset, chunk)
    buffer = work("values", *z.shape)
    values = z if buffer is None else buffer.copy_(z)  # z is a slice, and reshaping it would allocate a copy

    queries, keys, values = (rows.reshape(folded * count, chunk, rows.shape[2]) for rows in (queries, keys, values))
    before, after = chunk_states(keys, values, sums, weights, work)
    product_scale = None if query_scale is None or scale is None else query_scale + scale
    end_offset = offset if scale is None else scale[:, -1:].clone()
    return ScanBlock(queries, keys, values, before, after, weights, product_scale, end_offset)


def chunk_states(
    keys: ChunkFeatures, values: ChunkValues, sums: CausalSums, weights: Weights | None, work: Work
) -> tuple[CausalSums, CausalSums]:
    """Step 2: the state before each chunk, and after the last."""
    chunks, rows, width = keys.shape
    leaving = values if weights is None else values * weights.leave
    states = torch.bmm(keys.mT, leaving, out=work("states", chunks, width, values.shape[2]))
    before, after = running(sums.values, states, weights, work, "before")
    if sums.ones is None:
        return CausalSums(before, None), CausalSums(after, None)
    counts = keys.new_ones(1, 1, rows).expand(chunks, -1, -1) if weights is None else weights.leave.mT
    ones_before, ones_after = running(sums.ones, torch.bmm(counts, keys), weights, work, "ones before")
    return CausalSums(before, ones_before), CausalSums(after, ones_after)


def running(
    first: Tensor, states: Tensor, weights: Weights | None, work: Work, name: str, *, backwards: bool = False
) -> tuple[Tensor, Tensor]:
    """The state before each chunk, and after the last; `first` is the state before the first chunk."""
    folded = first.shape[0]
    states = states.unflatten(0, (folded, states.shape[0] // folded))
    if not isinstance(work, Workspace):
        return mixed(first, states, weights)
    order, single = list(range(states.shape[1])), states.shape[1] == 1  # one chunk, as in decoding
    before = first.unsqueeze(1) if single else work(name, *states.shape)
    if backwards:
        order.reverse()

    def leave(chunk: int, out: Tensor | None = None) -> Tensor:
        if weights is None:
            return torch.add(before[:, chunk], states[:, chunk], out=out)
        return torch.addcmul(states[:, chunk], before[:, chunk], weights.keep[:, chunk], out=out)

    if not single:
        before[:, order[0]] = first
    for chunk, following in pairwise(order):
        leave(chunk, out=before[:, following])
    return before.flatten(0, 1), leave(order[-1])


def mixed(
    first: Tensor, states: Float[Tensor, "folded chunks_of_each *of_a_state"], weights: Weights | None
) -> tuple[Tensor, Tensor]:
    """The same as `running`, without a loop."""
    states = torch.cat([first.unsqueeze(1), states], 1)
    if weights is None:
        states = states.cumsum(1)
    else:
        # A sum in one common scale would underflow, so every state weighs the earlier ones in its own scale.
        mix = (weights.ends.mT - weights.ends).exp().tril().to(states.dtype)
        states = torch.bmm(mix, states.flatten(2)).unflatten(2, states.shape[2:])
    return states[:, :-1].flatten(0, 1), states[:, -1]


def within(products: Float[Tensor, "chunks rows rows"], weights: Weights | None) -> Float[Tensor, "chunks rows rows"]:
    """Products within a chunk: weighted, and 0 for later keys."""
    if weights is not None:
        products = products.mul_(weights.inner)
    return products.tril_() if products.shape[1] > 1 else products


def totals(block: ScanBlock, work: Work) -> tuple[ValueRows, Column | None]:
    """Step 3 without the division: numerators and denominators."""
    queries, keys, values, before, after, weights, _, _ = block
    total = torch.bmm(queries, before.values, out=work("total", *values.shape))
    if weights is not None:
        total = total.mul_(weights.carry)
    products = torch.bmm(queries, keys.mT, out=work("products", *queries.shape[:2], keys.shape[1]))
    products = within(products, weights)
    total = torch.baddbmm(total, products, values, out=work("total", *values.shape))
    folded = after.values.shape[0]
    rows = total.shape[0] // folded * total.shape[1]
    denominator = None
    if before.ones is not None:
        carried = torch.bmm(before.ones, queries.mT).mT
        denominator = products.sum(-1, keepdim=True) + (carried if weights is None else carried * weights.carry)
        denominator = denominator.view(folded, rows, 1)
    return total.view(folded, rows, total.shape[2]), denominator


class Tape(NamedTuple):
    """What the backward pass needs besides the inputs and the output."""

    inverses: Column | None
    starts: list[CausalSums]
    offsets: list[Offset]


def sizes_of(plan: ScanPlan, length: int, folded: int, columns: int) -> list[int]:
    """Step 1: lengths of blocks of whole chunks; the remainder is one short block."""
    step, rest = block_length(plan, folded, columns), length % plan.chunk
    sizes = [min(step, length - rest - start) for start in range(0, length - rest, step)]
    return [*sizes, rest] if rest else sizes


def forward(
    plan: ScanPlan,
    q: Queries,
    k: Keys,
    v: Values,
    hidden: Hidden | None,
    whole: WholeSums,
    offset: Offset,
    *,
    record: bool,
) -> tuple[Output, WholeSums, Offset, Tape]:
    work, sums = Workspace(q, plan.dtype), CausalSums.of(plan, whole)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    inverses = None
    if plan.normalise or plan.exponential:
        inverses = q.new_empty(whole.shape[0], q.shape[2], 1, dtype=plan.dtype)
    tape = Tape(inverses, [], [])
    sizes = sizes_of(plan, q.shape[2], *whole.shape[::2])
    rows = (blocks(x, sizes, plan.dtype) for x in (q, k, v))
    for x, y, z, masked, output, inverse in zip(
        *rows, *(columns(x, sizes) for x in (hidden, out.flatten(0, 1), inverses))
    ):
        if record:
            tape.starts.append(sums)
            tape.offsets.append(offset)
        block = block_of(plan, x, y, z, masked, sums, offset, work)
        sums, offset = block.after, block.offset
        total, denominator = totals(block, work)
        if inverse is None:
            output.copy_(total)
        else:
            inverse.copy_(inverse_of(plan, denominator, block.scale))
            torch.mul(total, inverse, out=output)
    tape.offsets.append(offset)
    return out, sums.whole(), offset, tape


def _recompute(ctx: Any, saved: Sequence[Any]) -> tuple[Sequence[Tensor], Sequence[Tensor | None]]:
    q, k, v, hidden, first, _, _, offsets, values, ones, *_ = saved
    sums = CausalSums(values, ones).whole() if first is None else first
    with full_precision(q):
        out, after, _ = batched(ctx.plan, q, k, v, hidden, sums, offsets[0])
    return (out, after), (None, q, k, v, None, first, None)


class CausalScan(Function):
    @staticmethod
    def forward(
        ctx: Any, plan: ScanPlan, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, sums: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, after, offset, tape = forward(plan, q, k, v, hidden, sums, offset, record=True)
        starts = [tensor for start in tape.starts for tensor in start]
        first = sums if ctx.needs_input_grad[5] else None  # otherwise `starts` has it
        ctx.save_for_backward(q, k, v, hidden, first, out, tape.inverses, torch.stack(tape.offsets), *starts)
        ctx.plan = plan
        ctx.mark_non_differentiable(offset)
        ctx.set_materialize_grads(False)
        return out, after, offset

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, gradient: Tensor | None, after: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: activation checkpointing yields each saved tensor a single time
        with full_precision(saved[0]):
            return backward(ctx.plan, saved, gradient, after)


def backward(
    plan: ScanPlan, saved: tuple[Any, ...], gradient: Tensor | None, whole: WholeSums | None
) -> tuple[Tensor | None, ...]:
    """Step 4."""
    q, k, v, hidden, _, out, inverses, offsets, *starts = saved
    folded, columns_of_state = starts[0].shape[0], plan.columns(v.shape[3])
    gradient = torch.zeros_like(out) if gradient is None else gradient
    after = CausalSums.of(plan, starts[0].new_zeros(folded, plan.width, columns_of_state) if whole is None else whole)
    work = Workspace(q, plan.dtype)
    results = [x.new_empty(x.shape) for x in (q, k, v)]
    sizes = sizes_of(plan, q.shape[2], folded, columns_of_state)
    rows = (blocks(x, sizes, plan.dtype, backwards=True) for x in (q, k, v, gradient, out))
    more = (columns(x, sizes, backwards=True) for x in (inverses, hidden, *(x.flatten(0, 1) for x in results)))
    states = zip(reversed(starts[::2]), reversed(starts[1::2]), offsets[:-1].flip(0), offsets[1:].flip(0))
    for x, y, z, slope, output, inverse, masked, dx, dy, dz, (values, ones, offset, end) in zip(*rows, *more, states):
        still = host_may_read(offset) and torch.equal(offset, end)
        block = block_of(plan, x, y, z, masked, CausalSums(values, ones), offset, work, still=still)
        slope, below = gradient_rows(plan, slope, output, inverse, work)
        below = None if below is None else below.view(*block.values.shape[:2], 1)
        dqueries, dkeys, dvalues, after = pull_block(block, slope.reshape(block.values.shape), below, after, work)
        queries, keys = (features.view(*x.shape[:2], plan.width) for features in (block.queries, block.keys))
        plan.pull_queries(x, queries, dqueries.view(queries.shape), dx)
        plan.feature_map.pull(y, keys, dkeys.view(keys.shape), dy)
        dz.copy_(dvalues.view(dz.shape))
        if masked is not None:
            dy.masked_fill_(masked, 0.0)
    return None, *results, None, after.whole(), None


def pull_block(
    block: ScanBlock, slope: ChunkValues, below: ChunkColumn | None, after: CausalSums, work: Workspace
) -> tuple[ChunkFeatures, ChunkFeatures, ChunkValues, CausalSums]:
    """Gradients of a block's queries, keys and values, and of the state before it.

    They follow from the gradients of the numerators (`slope`), the denominators (`below`) and the state after it.
    """
    queries, keys, values, before, _, weights, _, _ = block
    products, slopes = (work(name, *queries.shape[:2], keys.shape[1]) for name in ("products", "slopes"))
    within(torch.bmm(queries, keys.mT, out=products), weights)
    carried, leaving = (slope, values) if weights is None else (slope * weights.carry, values * weights.leave)
    states = torch.bmm(queries.mT, carried, out=work("states", *before.values.shape))
    later, earlier = running(after.values, states, weights, work, "later", backwards=True)
    dqueries, dkeys = work("dqueries", *queries.shape), work("dkeys", *keys.shape)
    if below is None or before.ones is None or after.ones is None:
        torch.bmm(slope, values.mT, out=slopes)
        torch.bmm(carried, before.values.mT, out=dqueries)
        torch.bmm(leaving, later.mT, out=dkeys)
        ones_earlier = None
    else:
        torch.baddbmm(below, slope, values.mT, out=slopes)
        below = below if weights is None else below * weights.carry
        ones_states = torch.bmm(below.mT, queries)
        ones_later, ones_earlier = running(after.ones, ones_states, weights, work, "ones later", backwards=True)
        torch.mul(below, before.ones, out=dqueries).baddbmm_(carried, before.values.mT)
        torch.baddbmm(ones_later if weights is None else ones_later * weights.leave, leaving, later.mT, out=dkeys)
    within(slopes, weights)
    dqueries.baddbmm_(slopes, keys)
    dkeys.baddbmm_(slopes.mT, queries)
    dvalues = torch.bmm(keys, later, out=work("dvalues", *slope.shape))
    if weights is not None:
        dvalues.mul_(weights.leave)
    dvalues.baddbmm_(products.mT, slope)
    return dqueries, dkeys, dvalues, CausalSums(earlier, ones_earlier)


def batched(
    plan: ScanPlan, q: Queries, k: Keys, v: Values, hidden: Hidden | None, sums: WholeSums, offset: Offset
) -> tuple[Output, WholeSums, Offset]:
    """The loop-free form, for traced graphs and for feature maps that autograd must differentiate."""
    # Padding uses indices instead of slices, and there are at least two chunks: comparing a size with another size or
    # with 1 would specialise a dynamic-length graph to the length it was traced with.
    length = q.shape[2]
    padded = torch.arange((length + 2 * plan.chunk - 1) // plan.chunk * plan.chunk, device=q.device)
    source = padded.clamp(max=length - 1)
    x, y, z = (rows.to(plan.dtype).flatten(0, 1).index_select(1, source) for rows in (q, k, v))
    beyond = (padded >= length).view(1, -1, 1).expand(sums.shape[0], -1, 1)
    hidden = beyond if hidden is None else beyond | hidden.index_select(1, source)
    block = block_of(plan, x, y, z, hidden, CausalSums.of(plan, sums), offset, no_buffer, limit=length)
    out, denominator = totals(block, no_buffer)
    inverse = inverse_of(plan, denominator, block.scale)
    out = (out if inverse is None else out * inverse).index_select(1, torch.arange(length, device=q.device))
    return out.unflatten(0, q.shape[:2]).to(q.dtype), block.after.whole(), block.offset
