"""Linear attention in which every query reads every key: one state, two passes.

Keys are summed into the state, then queries read it. The backward pass mirrors this: queries are summed into the
gradient of the state, then keys and values read theirs from it. Features are computed block by block and not stored:
storing them would save little arithmetic and cost more in memory traffic.

z is separate from S, not its last column: values are then read in place, and no product is 65 numbers wide.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.attention.kernels.linear_scan.rows import (
    Hidden,
    KeyRows,
    Offset,
    ScanPlan,
    Workspace,
    block_length,
    blocks,
    columns,
    gradient_rows,
    inverse_of,
    key_rows,
    no_buffer,
    query_rows,
)
from longspan.derivatives import Function, twice_differentiable
from longspan.precision import full_precision
from longspan.shapes import Keys, Output, Queries, Values

FEATURES = 2**20  # features in memory at a time; twice the causal form's, which is slower with as many


class FullSums(NamedTuple):
    """The state of all keys, without the factor exp(offset)."""

    values: Float[Tensor, "folded features value_dim"]  # S
    ones: Float[Tensor, "folded 1 features"]  # z, as a row: products with a single column are slow
    offset: Offset


def forward(
    plan: ScanPlan, q: Queries, k: Keys, v: Values, hidden: Hidden | None, offset: Offset
) -> tuple[Output, Float[Tensor, "folded queries 1"], FullSums]:
    work, folded, width, value_dim = Workspace(q, plan.dtype), offset.shape[0], plan.width, v.shape[3]
    values = q.new_zeros(folded, width, value_dim, dtype=plan.dtype)
    ones = q.new_zeros(folded, 1, width, dtype=plan.dtype)
    step = block_length(plan, folded, value_dim, FEATURES)
    for y, z, masked in zip(*(blocks(x, step, plan.dtype) for x in (k, v)), columns(hidden, step)):
        keys, level, _ = key_rows(plan, y, masked, offset, None, work)
        if level is not None:
            end = level[:, -1:].clone()  # a view would keep all levels in memory
            keys.mul_((level - end).exp())
            for sums in (values, ones):
                sums.mul_((offset - end).exp())
            offset = end
        torch.baddbmm(values, keys.mT, z, out=values)
        ones.add_(keys.sum(1, keepdim=True))

    out = q.new_empty(*q.shape[:3], value_dim)
    inverses = q.new_empty(folded, q.shape[2], 1, dtype=plan.dtype)
    results = (columns(x, step) for x in (out.flatten(0, 1), inverses))
    for x, output, inverse in zip(blocks(q, step, plan.dtype), *results):
        queries, scale = query_rows(plan, x, work, buffer="keys")  # the keys' buffer is free by now
        denominator = torch.bmm(ones, queries.mT, out=work("denominator", folded, 1, x.shape[1]))
        inverse.copy_(inverse_of(plan, denominator.view(inverse.shape), None if scale is None else scale + offset))
        total = torch.bmm(queries, values, out=work("total", *output.shape))
        torch.mul(total, inverse, out=output)
    return out, inverses, FullSums(values, ones, offset)


def _recompute(ctx: Any, saved: Sequence[Any]) -> tuple[Tensor, Sequence[Tensor | None]]:
    q, k, v, hidden, *_, offset = saved  # the final offset, which is valid from the first key on too
    with full_precision(q):
        return batched(ctx.plan, q, k, v, hidden, offset), (None, q, k, v, None, None)


class FullScan(Function):
    @staticmethod
    def forward(
        ctx: Any, plan: ScanPlan, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, offset: Tensor
    ) -> Tensor:
        out, inverses, sums = forward(plan, q, k, v, hidden, offset)
        ctx.save_for_backward(q, k, v, hidden, out, inverses, *sums)
        ctx.plan = plan
        return out

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with full_precision(gradient):
            return backward(ctx.plan, ctx.saved_tensors, gradient)


def backward(plan: ScanPlan, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, hidden, out, inverses, values, ones, offset = saved
    work, dvalues, dones = Workspace(q, plan.dtype), torch.zeros_like(values), torch.zeros_like(ones)
    step = block_length(plan, values.shape[0], values.shape[2], FEATURES)
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))

    rows = (blocks(x, step, plan.dtype) for x in (q, gradient, out))
    for x, slope, output, inverse, dx in zip(*rows, columns(inverses, step), columns(dq.flatten(0, 1), step)):
        queries, _ = query_rows(plan, x, work, buffer="keys")
        slope, below = gradient_rows(plan, slope, output, inverse, work)
        assert below is not None  # the full form divides
        torch.baddbmm(dvalues, queries.mT, slope, out=dvalues)
        torch.baddbmm(dones, below.mT, queries, out=dones)
        pulled = torch.bmm(slope, values.mT, out=work("pulled", *queries.shape)).addcmul_(below, ones)
        plan.pull_queries(x, queries, pulled, dx)

    rows = (blocks(x, step, plan.dtype) for x in (k, v))
    more = (columns(x, step) for x in (hidden, dk.flatten(0, 1), dv.flatten(0, 1)))
    for y, z, masked, dy, dz in zip(*rows, *more):
        keys, _, _ = key_rows(plan, y, masked, offset, None, work, still=True)
        dz.copy_(torch.bmm(keys, dvalues, out=work("product", *z.shape)))
        pulled = torch.baddbmm(dones, z, dvalues.mT, out=work("pulled", *keys.shape))
        plan.feature_map.pull(y, keys, pulled, dy)
        if masked is not None:
            dy.masked_fill_(masked, 0.0)
    return None, dq, dk, dv, None, None


def batched(plan: ScanPlan, q: Queries, k: Keys, v: Values, hidden: Hidden | None, offset: Offset) -> Output:
    """The loop-free form, for traced graphs and for feature maps that autograd must differentiate."""
    x, y, z = (rows.to(plan.dtype).flatten(0, 1) for rows in (q, k, v))
    queries, query_scale = query_rows(plan, x, no_buffer)
    keys, key_scale = _in_one_scale(key_rows(plan, y, hidden, offset, None, no_buffer))
    denominator = torch.bmm(keys.sum(1, keepdim=True), queries.mT)
    scale = None if query_scale is None or key_scale is None else query_scale + key_scale
    inverse = inverse_of(plan, denominator.mT, scale)
    out = torch.bmm(queries, torch.bmm(keys.mT, z))
    return (out if inverse is None else out * inverse).view(*q.shape[:3], v.shape[3]).to(q.dtype)


def _in_one_scale(rows: KeyRows) -> tuple[Tensor, Tensor | None]:
    """Features in the scale of the last level, and the log of that scale."""
    if rows.level is None or rows.scale is None:
        return rows.features, rows.scale
    return rows.features * (rows.level - rows.level[:, -1:]).exp(), rows.scale[:, -1:]
