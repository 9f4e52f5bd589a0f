"""One softmax over several sources of keys (K3, K4).

`joint` takes the queries and a list of sources, each with its own layout, and normalises over all of their keys at
once. Two ways lead there, and the tests hold them to each other:

- plain: the scores of all sources side by side, one softmax, the weights split again (K3).
- fused: each source gives its output and log-sum-exp, merged by sum_p exp(lse_p - lse) out_p (K4). In the backward
  pass every source is handed the merged output and log-sum-exp: its weights are exp(score - lse), so its own fused
  backward then gives its share of the gradients exactly, and nothing but q, k, v, out and lse is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout as drop

from longspan.attention import flash
from longspan.attention.flash import DEAD
from longspan.attention.layouts import Layout
from longspan.attention.layouts.base import add
from longspan.errors import Unsupported


@dataclass(frozen=True)
class Source:
    """Keys and values, and where each query finds its own among them."""

    layout: Layout
    k: Tensor
    v: Tensor
    keep: Tensor | None = None  # (batch, keys): True, may be read
    bias: Tensor | None = None  # (heads, offsets)
    extra: Tensor | None = None  # added to the scores, laid out as they are; takes the plain way

    def __post_init__(self) -> None:
        if self.bias is not None and not self.layout.takes_bias:
            raise Unsupported(f"{type(self.layout).__name__} has no offsets, so it takes no bias")


def joint(q: Tensor, sources: Sequence[Source], *, scale: float, dropout: float = 0.0) -> Tensor:
    """softmax(scale · q kᵀ over the union of the sources) v; a row with nothing to read is 0."""
    fused = not dropout and all(
        flash.fits(q, source.k, source.v)
        and source.extra is None
        and not (source.bias is not None and source.bias.requires_grad)
        for source in sources
    )
    if not fused:
        return _plain(q, sources, scale, dropout)
    pairs = [tensor for source in sources for tensor in (source.k, source.v)]
    plans = [(source.layout, _unless_all(source.keep), source.bias) for source in sources]
    return _Fused.apply(plans, scale, q, *pairs)


def _unless_all(keep: Tensor | None) -> Tensor | None:
    """A mask that hides nothing is no mask: tiles are then shared by all blocks."""
    return None if keep is None or bool(keep.all()) else keep


def _plain(q: Tensor, sources: Sequence[Source], scale: float, dropout: float) -> Tensor:
    parts = [add(s.layout.scores(q, s.k, s.keep, s.bias, scale), s.extra) for s in sources]
    scores = torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
    weights = scores.softmax(dim=-1).masked_fill(scores < DEAD, 0.0).to(q.dtype)
    weights = drop(weights, dropout, training=bool(dropout))
    pieces = weights.split([part.shape[-1] for part in parts], dim=-1)
    out = sources[0].layout.mix(pieces[0], sources[0].v)
    for source, piece in zip(sources[1:], pieces[1:]):
        out = out + source.layout.mix(piece, source.v)
    return out


_Plan = tuple[Layout, Tensor | None, Tensor | None]  # layout, keep, bias


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plans: Sequence[_Plan], scale: float, q: Tensor, *pairs: Tensor) -> Tensor:
        out = lse = None
        for (layout, keep, bias), k, v in zip(plans, pairs[::2], pairs[1::2]):
            part, part_lse = layout.forward(q, k, v, keep, bias, scale)
            if out is None or lse is None:
                out, lse = part, part_lse
                continue
            total = torch.logaddexp(lse, part_lse)
            out = out.lerp_(part, (part_lse - total).exp().to(out.dtype)[..., None])  # the two shares add up to 1
            lse = total
        assert out is not None and lse is not None
        dead = lse < DEAD
        ctx.some_dead = bool(dead.any())
        if ctx.some_dead:
            out = out.masked_fill(dead[..., None], 0.0)
        ctx.save_for_backward(q, out, lse, *pairs)
        ctx.plans, ctx.scale = plans, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, out, lse, *pairs = ctx.saved_tensors
        g = g.masked_fill((lse < DEAD)[..., None], 0.0) if ctx.some_dead else g.contiguous()
        dq: Tensor | None = None
        gradients: list[Tensor | None] = []
        for (layout, keep, bias), k, v in zip(ctx.plans, pairs[::2], pairs[1::2]):
            part, dk, dv = layout.backward(g, q, k, v, keep, bias, out, lse, ctx.scale)
            dq = part if dq is None else dq.add_(part)
            gradients += [dk, dv]
        return None, None, dq, *gradients
