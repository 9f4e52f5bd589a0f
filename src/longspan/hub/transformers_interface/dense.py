"""Exact attention with what their families add: grouped queries, any mask, windows, soft caps, sinks, biases.

It holds weights of queries × keys in memory.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop

from longspan.attention.base import share_heads


@dataclass(frozen=True)
class Extra:
    """What some families do to their scores."""

    softcap: float | None = None  # Gemma 2: c·tanh(score/c)
    sinks: Tensor | None = None  # gpt-oss: one more score per head, which takes weight and gives nothing
    bias: Tensor | None = None  # T5: added to the scores, (1 or batch, heads, queries, keys)
    mask: Tensor | None = None  # a mask of the user, boolean or to be added

    @property
    def names(self) -> list[str]:
        """The parts that are there, as an error names them."""
        told = {"a soft cap on scores": self.softcap, "attention sinks": self.sinks, "a mask of its own": self.mask}
        return [name for name, value in told.items() if value is not None]


def readable(
    queries: int, keys: int, causal: bool, window: int | None, texts: Tensor | None, device: torch.device
) -> Tensor:
    """Which keys each query reads, (batch or 1, 1, queries, keys); the queries of self-attention are the last keys."""
    own = torch.arange(keys - queries if causal else 0, keys if causal else queries, device=device)[:, None]
    other = torch.arange(keys, device=device)[None]
    keep = other <= own if causal else torch.ones(queries, keys, dtype=torch.bool, device=device)
    if window is not None:
        keep = keep & ((other > own - window) if causal else ((own - other).abs() <= window))
    if texts is None:
        return keep[None, None]
    keep = keep[None] & (texts > 0)[:, None]
    if bool((texts > 1).any()):
        keep = keep & (texts[:, -queries:, None] == texts[:, None])
    return keep[:, None]


def attend(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, extra: Extra, *, scaling: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """Output and weights. A query that may read nothing gives 0."""
    k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    scores = (q @ k.transpose(2, 3)) * scaling
    if extra.softcap is not None:
        scores = torch.tanh(scores / extra.softcap) * extra.softcap
    if extra.bias is not None:
        scores = scores + extra.bias[..., : scores.shape[3]]
    if extra.mask is not None and extra.mask.dtype != torch.bool:
        scores = scores + extra.mask[..., : scores.shape[3]]
    elif extra.mask is not None:
        given = extra.mask[..., : scores.shape[3]]
        keep = given if keep is None else keep & given
    if extra.sinks is not None:
        sinks = extra.sinks.to(scores).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], 3)
        keep = None if keep is None else torch.cat([keep, keep.new_ones(*keep.shape[:3], 1)], 3)
    if keep is not None:
        alive = keep.any(-1, keepdim=True)
        scores = scores.masked_fill(~keep, float("-inf")).masked_fill(~alive, 0.0)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(q.dtype)
    if keep is not None:
        weights = weights.masked_fill(~keep, 0.0)
    if extra.sinks is not None:
        weights = weights[..., :-1]
    return drop(weights, dropout, training=dropout > 0) @ v, weights


__all__ = ["Extra", "attend", "readable"]
