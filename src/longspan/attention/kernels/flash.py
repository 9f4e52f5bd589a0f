"""The one place that calls torch's fused CPU attention: output, log-sum-exp, and the backward of both.

The operators are internal to torch, so they stand behind two functions with a plain fallback, and a test holds the two
to each other. Masks here are *added* to the scores; `BLOCKED` stands where a key may not be read. It is finite: a row
with nothing to read then has a log-sum-exp near `BLOCKED` instead of the kernel's 0, and merges to nothing by itself.
"""

import torch
from torch import Tensor

from longspan.attention.devices import on_cpu
from longspan.attention.kernels import flash_dropout
from longspan.attention.kernels.flash_dropout import BLOCKED

DEAD = -1e29  # a log-sum-exp below this: the row had nothing to read

_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
_HAVE = hasattr(torch.ops.aten, _FORWARD) and hasattr(torch.ops.aten, _BACKWARD)


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the fused kernel takes these; it is for the CPU, and wants values as wide as keys."""
    return _HAVE and on_cpu(q) and k.shape[-1] == v.shape[-1] and not torch.compiler.is_compiling()


def forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp (batch, heads, queries); `mask` may broadcast over batch, heads and queries.

    `causal` aligns the triangle to the top left.
    """
    dropout = flash_dropout.in_force()
    if dropout is not None:
        return flash_dropout.forward(dropout, q, k, v, scale, causal, mask)
    if not fits(q, k, v):
        return _plain_forward(q, k, v, scale, causal, mask)
    q, k, v = (_rows(x) for x in (q, k, v))
    out, lse = getattr(torch.ops.aten, _FORWARD)(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return out, lse


def backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v. `out` and `lse` may be those of a softmax over more keys than these."""
    dropout = flash_dropout.in_force()
    if dropout is not None:
        return flash_dropout.backward(dropout, g, q, k, v, out, lse, scale, causal, mask)
    if not fits(q, k, v):
        return _plain_backward(g, q, k, v, out, lse, scale, causal, mask)
    apart = _apart(q)
    g, q, k, v, out = (_turn(_rows(x), apart) for x in (g, q, k, v, out))
    lse, mask = _turn(lse, apart), mask if mask is None else _turn(mask, apart)
    dq, dk, dv = getattr(torch.ops.aten, _BACKWARD)(g, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale)
    return _turn(dq, apart), _turn(dk, apart), _turn(dv, apart)


def _rows(x: Tensor) -> Tensor:
    """The kernel reads each row as one run of numbers, and does not ask whether it is."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _apart(q: Tensor) -> bool:
    """Whether the heads of one sequence are to go as sequences of a batch, where they lie one after the other.

    The kernel lays the gradients of all heads of a token side by side: the rows of a head, which it adds to again and
    again, are then a power of 2 apart and fight for the same lines of the cache.
    """
    return q.shape[0] == 1 and q.shape[1] > 1 and q.is_contiguous()


def _turn(x: Tensor, apart: bool) -> Tensor:
    return x.transpose(0, 1) if apart and x.dim() > 2 else x


def _plain_scores(q: Tensor, k: Tensor, scale: float, causal: bool, mask: Tensor | None) -> Tensor:
    scores = (q @ k.mT).to(_accumulate(q.dtype)) * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(above, BLOCKED)
    return scores


def _plain_forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    scores = _plain_scores(q, k, scale, causal, mask)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(v.dtype) @ v, lse


def _plain_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    weights = (_plain_scores(q, k, scale, causal, mask) - lse[..., None]).exp().to(v.dtype)
    towards = (g @ v.mT - (g * out).sum(-1, keepdim=True)) * weights * scale
    return towards @ k, towards.mT @ q, weights.mT @ g


def _accumulate(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
