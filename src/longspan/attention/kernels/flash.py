"""Torch's fused CPU attention: output, log-sum-exp, and their backward pass.

The operators are internal to torch, so only this file calls them. Each has a plain fallback, and a test compares the
two. Masks are *added* to the scores, with `BLOCKED` for a key that may not be read. `BLOCKED` is finite: a row with
nothing to read gets a log-sum-exp near `BLOCKED` instead of the kernel's 0, so merging gives it no weight.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.devices import on_cpu
from longspan.attention.kernels import flash_dropout
from longspan.attention.kernels.flash_dropout import BLOCKED

DEAD = -1e29  # a row whose log-sum-exp is below this had nothing to read

_FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
_BACKWARD = "_scaled_dot_product_flash_attention_for_cpu_backward"
_AVAILABLE = hasattr(torch.ops.aten, _FORWARD) and hasattr(torch.ops.aten, _BACKWARD)


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the fused kernel takes these: on the CPU, with values as wide as keys."""
    return _AVAILABLE and on_cpu(q) and k.shape[-1] == v.shape[-1] and not torch.compiler.is_compiling()


def widen(x: Tensor, width: int) -> Tensor:
    """x with zeros appended to its rows: they change no product, and the output of padded values is sliced off.

    The heads of a token stay side by side in memory, so that merging the output's heads copies nothing.
    """
    return x if x.shape[-1] == width else pad(x.transpose(1, 2), (0, width - x.shape[-1])).transpose(1, 2)


def forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp (batch, heads, queries); `mask` may broadcast over batch, heads and queries.

    With `causal`, query 0 is aligned with key 0.
    """
    dropout = flash_dropout.active()
    if dropout is not None:
        return flash_dropout.forward(dropout, q, k, v, scale, causal, mask)
    if not fits(q, k, v):
        return _plain_forward(q, k, v, scale, causal, mask)
    q, k, v = (_contiguous_rows(x) for x in (q, k, v))
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
    dropout = flash_dropout.active()
    if dropout is not None:
        return flash_dropout.backward(dropout, g, q, k, v, out, lse, scale, causal, mask)
    if not fits(q, k, v):
        return _plain_backward(g, q, k, v, out, lse, scale, causal, mask)
    swap = _heads_as_batch(q)
    g, q, k, v, out = (_swap_heads(_contiguous_rows(x), swap) for x in (g, q, k, v, out))
    lse, mask = _swap_heads(lse, swap), mask if mask is None else _swap_heads(mask, swap)
    dq, dk, dv = getattr(torch.ops.aten, _BACKWARD)(g, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale)
    return _swap_heads(dq, swap), _swap_heads(dk, swap), _swap_heads(dv, swap)


def _contiguous_rows(x: Tensor) -> Tensor:
    """The kernel assumes that each row is contiguous, and does not check it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _heads_as_batch(q: Tensor) -> bool:
    """Whether to pass the heads of a single sequence as a batch, if they are contiguous.

    The kernel interleaves the gradients of all heads of a token. The rows of a head, which it accumulates into, are
    then a power of 2 apart and compete for the same cache lines.
    """
    return q.shape[0] == 1 and q.shape[1] > 1 and q.is_contiguous()


def _swap_heads(x: Tensor, swap: bool) -> Tensor:
    return x.transpose(0, 1) if swap and x.dim() > 2 else x


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
    dscores = (g @ v.mT - (g * out).sum(-1, keepdim=True)) * weights * scale
    return dscores @ k, dscores.mT @ q, weights.mT @ g


def _accumulate(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


__all__ = ["BLOCKED", "DEAD", "backward", "fits", "forward", "widen"]
