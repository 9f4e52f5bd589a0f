"""The full form: every query reads every key, so there is one state, and two passes.

Keys add up to the state; queries read it. The backward goes the same way: queries add up to the gradient on the state,
and keys and values read theirs from it. Features are made block by block and never kept.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from longspan.attention.scan_rows import (
    Column,
    Hidden,
    Offset,
    Plan,
    Sums,
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
    with_ones,
)
from longspan.shapes import Keys, Output, Queries, Values


def forward(
    plan: Plan, q: Queries, k: Keys, v: Values, hidden: Hidden | None, sums: Sums, offset: Offset
) -> tuple[Output, Column, Sums, Offset]:
    work, sums = Workspace(q, plan.dtype), sums.clone()
    step = block_length(plan, sums.shape[0], sums.shape[2])
    for y, z, masked in zip(*(blocks(x, step, plan.dtype) for x in (k, v)), columns(hidden, step)):
        keys, level, _ = key_rows(plan, y, masked, offset, None, work)
        values = with_ones(plan, z, work)
        if level is not None:
            end = level[:, -1:].clone()  # not a view, which would keep all levels alive
            sums.mul_((offset - end).exp())
            values, offset = values * (level - end).exp(), end
        torch.baddbmm(sums, keys.mT, values, out=sums)

    out = q.new_empty(*q.shape[:3], v.shape[3])
    inverses = q.new_empty(sums.shape[0], q.shape[2], 1, dtype=plan.dtype)
    results = (columns(x, step) for x in (out.flatten(0, 1), inverses))
    for x, output, inverse in zip(blocks(q, step, plan.dtype), *results):
        queries, own = query_rows(plan, x, work)
        total = torch.bmm(queries, sums, out=work("values", *x.shape[:2], sums.shape[2]))
        inverse.copy_(inverse_of(plan, total, None if own is None else own + offset))
        torch.mul(total[..., :-1], inverse, out=output)
    return out, inverses, sums, offset


class Full(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, plan: Plan, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, sums: Tensor, offset: Tensor
    ) -> Tensor:
        out, inverses, sums, offset = forward(plan, q, k, v, hidden, sums, offset)
        ctx.save_for_backward(q, k, v, hidden, out, inverses, sums, offset)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with full_precision(gradient):
            return backward(ctx.plan, ctx.saved_tensors, gradient)


def backward(plan: Plan, saved: tuple[Any, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, hidden, out, inverses, sums, offset = saved
    work, dsums = Workspace(q, plan.dtype), torch.zeros_like(sums)
    step = block_length(plan, len(sums), sums.shape[2])
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))

    rows = (blocks(x, step, plan.dtype) for x in (q, gradient, out))
    for x, slope, output, inverse, dx in zip(*rows, columns(inverses, step), columns(dq.flatten(0, 1), step)):
        queries, _ = query_rows(plan, x, work)
        slope = gradient_rows(plan, slope, output, inverse, work)
        torch.baddbmm(dsums, queries.mT, slope, out=dsums)
        pulled = torch.bmm(slope, sums.mT, out=work("pulled", *queries.shape))
        plan.pull_queries(x, queries, pulled, dx)

    rows = (blocks(x, step, plan.dtype) for x in (k, v))
    more = (columns(x, step) for x in (hidden, dk.flatten(0, 1), dv.flatten(0, 1)))
    for y, z, masked, dy, dz in zip(*rows, *more):
        keys, _, _ = key_rows(plan, y, masked, offset, None, work, still=True)
        dz.copy_(torch.bmm(keys, dsums[..., :-1], out=work("dvalues", *z.shape)))
        pulled = torch.bmm(with_ones(plan, z, work), dsums.mT, out=work("pulled", *keys.shape))
        plan.feature_map.pull(y, keys, pulled, dy)
        if masked is not None:
            dy.masked_fill_(masked, 0.0)
    return None, dq, dk, dv, None, None, None


def batched(plan: Plan, q: Queries, k: Keys, v: Values, hidden: Hidden | None, sums: Sums, offset: Offset) -> Output:
    """The loop-free form, for graphs and for maps that autograd has to see."""
    x, y, z = (rows.to(plan.dtype).flatten(0, 1) for rows in (q, k, v))
    queries, own = query_rows(plan, x, no_buffer)
    keys, level, scale = key_rows(plan, y, hidden, offset, None, no_buffer)
    values = with_ones(plan, z, no_buffer)
    if level is not None:
        values = values * (level - level[:, -1:]).exp()
    total = torch.bmm(queries, torch.bmm(keys.mT, values))
    inverse = inverse_of(plan, total, None if own is None or scale is None else own + scale[:, -1:])
    out = total[..., : v.shape[3]]
    return (out if inverse is None else out * inverse).unflatten(0, q.shape[:2]).to(q.dtype)
