"""Torch's `scaled_dot_product_attention`, with second derivatives on the CPU.

Torch's fused kernels have no second derivative and raise an error. On the CPU, while gradients are recorded, the kernel
is called through `flash.py` instead, and a graph of the gradients consists of plain products.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from longspan.attention.base import share_heads
from longspan.attention.kernels import flash
from longspan.derivatives import Function, twice_differentiable

FEW_QUERIES = 16  # up to so many, keys that are not as wide as values are not padded for the fused kernel


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = False,
    mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(scale · q kᵀ + mask) v; `mask` is 4-dimensional with q's dtype; `causal` aligns query 0 with key 0."""
    values, transformed = v.shape[-1], torch._C._are_functorch_transforms_active()
    # In decoding, padding would copy all keys. An exported program must not decide by the number of queries.
    pays = torch.compiler.is_exporting() or q.shape[2] > FEW_QUERIES or torch.is_grad_enabled()
    if k.shape[-1] != values and flash.fits(q, k, k) and pays and not transformed:
        width = max(k.shape[-1], values)  # one width, which the fused kernel needs
        q, k, v = (flash.widen(x, width) for x in (q, k, v))
        return attend(q, k, v, scale=scale, causal=causal, mask=mask, dropout=dropout)[..., :values]
    recorded = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if recorded and not dropout and flash.fits(q, k, v) and not transformed:
        out: Tensor = _Attend.apply(q, k, v, mask, causal, scale)
        return out
    grouped = True if k.shape[1] != q.shape[1] else False  # noqa: SIM210 (compiled, the comparison is no bool)
    return scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def _recompute(ctx: Any, saved: Sequence[Any]) -> tuple[Tensor, Sequence[Tensor | None]]:
    q, k, v, mask, *_ = saved
    keys, values = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    with sdpa_kernel(SDPBackend.MATH):
        out = scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=ctx.causal, scale=ctx.scale)
    return out, (q, k, v, None, None, None)


class _Attend(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
        keys, values = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
        out, lse = flash.forward(q, keys, values, scale, causal=causal, mask=mask)
        ctx.save_for_backward(q, k, v, mask, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, out, lse = ctx.saved_tensors
        keys, values = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])  # repeated again: only k and v are kept
        dq, dk, dv = flash.backward(g, q, keys, values, out, lse, ctx.scale, causal=ctx.causal, mask=mask)
        return dq, _sum_groups(dk, k), _sum_groups(dv, v), None, None, None


def _sum_groups(gradient: Tensor, like: Tensor) -> Tensor:
    """The gradient of key heads that several query heads read."""
    heads = like.shape[1]
    return gradient if gradient.shape[1] == heads else gradient.unflatten(1, (heads, -1)).sum(2)


__all__ = ["attend"]
