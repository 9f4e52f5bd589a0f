"""Fused calls over strips of queries that each read a prefix of one list of keys, for `Summaries` and `Stairs`."""

from collections.abc import Iterable

import torch
from torch import Tensor

from longspan.attention.kernels import flash
from longspan.attention.kernels.flash_dropout import BLOCKED
from longspan.attention.layouts.base import wide

Strip = tuple[slice, int, Tensor | None]  # queries, number of keys they read, mask to add to the scores


def forward(q: Tensor, k: Tensor, v: Tensor, strips: Iterable[Strip], scale: float) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; queries in no strip read nothing."""
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:3], BLOCKED, dtype=wide(q.dtype))
    for rows, seen, mask in strips:
        out[:, :, rows], lse[:, :, rows] = flash.forward(
            q[:, :, rows], k[:, :, :seen], v[:, :, :seen], scale, mask=mask
        )
    return out, lse


def backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, strips: Iterable[Strip], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q and of the listed k and v."""
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows, seen, mask in strips:
        dq[:, :, rows], dk_part, dv_part = flash.backward(
            g[:, :, rows],
            q[:, :, rows],
            k[:, :, :seen],
            v[:, :, :seen],
            out[:, :, rows],
            lse[:, :, rows],
            scale,
            mask=mask,
        )
        dk[:, :, :seen] += dk_part
        dv[:, :, :seen] += dv_part
    return dq, dk, dv
