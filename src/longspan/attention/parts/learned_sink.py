"""A learned logit per head that joins each row's softmax and has no value (gpt-oss): the weights sum to less than 1."""

import torch
from torch import Tensor, nn

from longspan.attention.base import masked_softmax
from longspan.attention.spec import Shape


def sink_logits(shape: Shape) -> nn.Parameter:
    """One logit per head, N(0, 0.02²)."""
    return nn.Parameter(torch.randn(shape.heads) * 0.02)


def sink_softmax(scores: Tensor, keep: Tensor, logits: Tensor | None) -> Tensor:
    """For definitions: `masked_softmax`, with the weight of the sink left out of its result."""
    if logits is None:
        return masked_softmax(scores, keep)
    column = logits.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    keep = keep.expand(scores.shape)
    # A row with nothing to read has no sink either.
    every = torch.cat([keep, keep.any(-1, keepdim=True)], -1)
    return masked_softmax(torch.cat([scores, column], -1), every)[..., :-1]


__all__ = ["sink_logits", "sink_softmax"]
