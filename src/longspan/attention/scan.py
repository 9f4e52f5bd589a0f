"""draft 2"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from longspan.attention.features import ExponentialMap, FeatureMap, as_feature_map

STEP = 8.0


@dataclass(frozen=True)
class Plan:
    """What stays the same from chunk to chunk."""

    feature_map: FeatureMap
    epsilon: float
    normalise: bool
    chunk: int
    dtype: torch.dtype
    log_decay: Tensor | None = None

    @property
    def cancels(self) -> bool:
        return self.normalise and self.epsilon == 0

    def drop(self, positions: int) -> Tensor | None:
        if self.log_decay is None:
            return None
        steps = torch.arange(1, positions + 1, device=self.log_decay.device, dtype=self.dtype)
        return self.log_decay * steps[:, None]


class Workspace:
    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.like, self.dtype = like, dtype
        self.held = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        buffer = self.held.get((name, shape))
        if buffer is None:
            buffer = self.held[name, shape] = self.like.new_ones(shape, dtype=self.dtype)
        return buffer


class Weights(NamedTuple):
    level: Tensor
    offset: Tensor

    @property
    def carry(self):
        return (self.offset - self.level).exp_()

    @property
    def inner(self):
        return (self.level.transpose(1, 2) - self.level).exp_()

    @property
    def leave(self):
        return (self.level - self.level[:, -1:]).exp_()

    @property
    def keep(self):
        return (self.offset - self.level[:, -1:]).exp_()


def pieces(x, chunk, dtype):
    for part in x.split(chunk, 2):
        yield part.to(dtype).flatten(0, 1)


def back(x, chunk, dtype):
    for part in reversed(x.split(chunk, 2)):
        yield part.to(dtype).flatten(0, 1)


def query_rows(plan, x, work):
    feature_map = plan.feature_map
    shape = (*x.shape[:2], feature_map.width(x.shape[2]))
    if not isinstance(feature_map, ExponentialMap):
        return feature_map.features(x, work("queries", *shape)), None
    exponents = feature_map.exponents(x, work("exponents", *shape))
    if plan.cancels:
        return torch.softmax(exponents, -1, out=work("queries", *shape)), None
    peak = exponents.amax(-1, keepdim=True)
    return exponents.sub_(peak).exp_(), peak + feature_map.common(x)


def key_rows(plan, x, hidden, offset, drop, work, still=False):
    feature_map = plan.feature_map
    buffer = work("keys", *x.shape[:2], feature_map.width(x.shape[2]))
    if not isinstance(feature_map, ExponentialMap):
        features = feature_map.features(x, buffer)
        if hidden is not None:
            features = features.masked_fill(hidden, 0.0)
        return features, None if drop is None else Weights(-drop, offset)
    exponents, common = feature_map.exponents(x, buffer), feature_map.common(x)
    if hidden is not None:
        exponents.masked_fill_(hidden, -math.inf)
    if not still:
        rise = exponents.amax(-1, keepdim=True).add_(common)
        if drop is not None or (rise > offset).any():
            if drop is not None:
                rise = rise - drop
            level = torch.cummax(torch.maximum((rise / STEP).ceil() * STEP, offset), 1).values
            c = level if drop is None else level + drop
            return exponents.add_(common - c).exp_(), Weights(level, offset)
    return exponents.add_(common - offset).exp_(), None


def with_one(plan, v, work, name="values"):
    if not plan.normalise:
        return v
    buffer = work(name, *v.shape[:2], v.shape[2] + 1)
    buffer[..., :-1] = v
    return buffer


def within(fq, fk, weights, out):
    scores = torch.bmm(fq, fk.transpose(1, 2), out=out)
    if weights is not None:
        scores.mul_(weights.inner)
    return scores.tril_()


def absorb(sums, features, values, weights):
    if weights is not None:
        sums.mul_(weights.keep)
        values = values * weights.leave
    torch.baddbmm(sums, features.transpose(1, 2), values, out=sums)


def inverse_of(plan, total, log_scale):
    if not plan.normalise:
        return None if log_scale is None else log_scale.exp()
    denominator = total[..., -1:]
    if plan.epsilon:
        denominator = denominator + (plan.epsilon if log_scale is None else plan.epsilon * (-log_scale).exp())
    return denominator.masked_fill(denominator == 0, math.inf).reciprocal()


def causal_forward(plan, q, k, v, hidden, sums, offset, record):
    batch, heads, length, _ = q.shape
    value_dim = v.shape[-1]
    work = Workspace(q, plan.dtype)
    sums, offset = sums.flatten(0, 1).clone(), offset.flatten().view(-1, 1, 1)
    out = q.new_empty(batch * heads, length, value_dim)
    inverses = q.new_empty(batch * heads, length, 1, dtype=plan.dtype)
    every = -(-sums.shape[-1] // plan.chunk)
    starts, offsets = [], []
    if record:
        starts = sums.new_empty(-(-length // (every * plan.chunk)), *sums.shape)
    for i, (x, y, z, o, inverse, gone) in enumerate(
        zip(
            pieces(q, plan.chunk, plan.dtype),
            pieces(k, plan.chunk, plan.dtype),
            pieces(v, plan.chunk, plan.dtype),
            out.split(plan.chunk, 1),
            inverses.split(plan.chunk, 1),
            repeat(None) if hidden is None else hidden.split(plan.chunk, 1),
        )
    ):
        if record and i % every == 0:
            starts[i // every] = sums
            offsets.append(offset)
        drop = plan.drop(x.shape[1])
        fq, own = query_rows(plan, x, work)
        fk, weights = key_rows(plan, y, gone, offset, drop, work)
        z = with_one(plan, z, work)
        total = torch.bmm(fq, sums, out=work("total", *z.shape))
        if weights is not None:
            total.mul_(weights.carry)
        scores = within(fq, fk, weights, work("scores", *fq.shape[:2], fk.shape[1]))
        torch.baddbmm(total, scores, z, out=total)
        inverse.copy_(inverse_of(plan, total, None))
        torch.mul(total[..., :value_dim], inverse, out=o)
        absorb(sums, fk, z, weights)
        if weights is not None and own is not None or isinstance(plan.feature_map, ExponentialMap) and weights is not None:
            offset = weights.level[:, -1:] if drop is None else weights.level[:, -1:] + drop[:, -1:]
    offsets.append(offset)
    return out.view(batch, heads, length, value_dim), sums, offset, inverses, starts, offsets, every * plan.chunk


def with_row(plan, g, out, inverse, work):
    if not plan.normalise:
        return g if inverse is None else g * inverse
    buffer = work("gradients", *g.shape[:2], g.shape[2] + 1)
    torch.mul(g, inverse, out=buffer[..., :-1])
    torch.sum(torch.mul(buffer[..., :-1], out, out=work("t", *g.shape)), -1, keepdim=True, out=buffer[..., -1:]).neg_()
    return buffer


class Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, q, k, v, hidden, sums, offset):
        out, sums, offset, inverses, starts, offsets, span = causal_forward(plan, q, k, v, hidden, sums, offset, True)
        ctx.save_for_backward(q, k, v, hidden, out, inverses, starts, torch.stack(offsets))
        ctx.plan, ctx.span = plan, span
        ctx.mark_non_differentiable(offset)
        ctx.set_materialize_grads(False)
        return out, sums, offset

    @staticmethod
    @once_differentiable
    def backward(ctx, g, gsums, _):
        q, k, v, hidden, out, inverse, starts, offsets = ctx.saved_tensors
        plan, span = ctx.plan, ctx.span
        batch, heads, length, _ = q.shape
        work = Workspace(q, plan.dtype)
        dsums = torch.zeros_like(starts[0]) if gsums is None else gsums.clone()
        dq, dk, dv = (x.new_empty(batch * heads, *x.shape[2:]) for x in (q, k, v))
        vd = v.shape[-1]
        i = len(starts)
        for x, y, z, r, o, inv, a, b, c, gone in zip(
            *(back(t, span, plan.dtype) for t in (q, k, v, g, out)),
            *(reversed(t.split(span, 1)) for t in (inverse, dq, dk, dv)),
            repeat(None) if hidden is None else reversed(hidden.split(span, 1)),
        ):
            i -= 1
            drop = plan.drop(x.shape[1])
            sums, offset = starts[i], offsets[i]
            fq, own = query_rows(plan, x, work)
            still = torch.equal(offset, offsets[i + 1])
            fk, weights = key_rows(plan, y, gone, offset, drop, work, still)
            z = with_one(plan, z, work)
            r = with_row(plan, r, o, inv, work)
            scores = within(fq, fk, weights, work("scores", *fq.shape[:2], fk.shape[1]))
            dscores = within(r, z, weights, work("dscores", *fq.shape[:2], fk.shape[1]))
            gc, vl = (r, z) if weights is None else (r * weights.carry, z * weights.leave)
            G = torch.bmm(gc, sums.transpose(1, 2), out=work("G", *fq.shape))
            G = torch.baddbmm(G, dscores, fk, out=G)
            if plan.cancels and isinstance(plan.feature_map, ExponentialMap):
                a.copy_(plan.feature_map.pull_exponents(x, fq, G))
            else:
                a.copy_(plan.feature_map.pull(x, fq, G))
            G = torch.bmm(vl, dsums.transpose(1, 2), out=work("G", *fq.shape))
            G = torch.baddbmm(G, dscores.transpose(1, 2), fq, out=G)
            o = torch.bmm(fk, dsums[..., :vd], out=work("dv", *fk.shape[:2], vd))
            if weights is not None:
                o.mul_(weights.leave)
            o = torch.baddbmm(o, scores.transpose(1, 2), r[..., :vd], out=o)
            c.copy_(o)
            p = plan.feature_map.pull(y, fk, G)
            if gone is not None:
                p = p.masked_fill(gone, 0.0)
            b.copy_(p)
            absorb(dsums, fq, gc, None) if weights is None else (dsums.mul_(weights.keep), absorb(dsums, fq, gc, None))
        return None, *(x.unflatten(0, (batch, heads)) for x in (dq, dk, dv)), None, dsums, None
