"""Learned feature maps of Hedgehog (Zhang et al. 2024), one matrix W per head.

    φ(x) = [softmax(Wx); softmax(−Wx)],    joined: softmax([2Wx; −2Wx])

The first is LoLCATs' released form, the second flash-linear-attention's. Features are at least 1e-12, as in LoLCATs:
sharp features of a query and a key may have nothing in common, and their product must not be 0.
"""

import torch
from torch import Tensor, nn

from longspan.precision import full_precision

SMALLEST = 1e-12  # of a feature


def start_matrix(heads: int, features: int, head_dim: int) -> nn.Parameter:
    """W of every head: the identity, cut off if there are fewer rows.

    Further rows are those of fixed random rotations. Repeated rows would have equal gradients and stay equal.
    """
    generator = torch.Generator().manual_seed(0)
    blocks = [torch.eye(head_dim, dtype=torch.float64)]
    while len(blocks) * head_dim < features:
        drawn = torch.randn(head_dim, head_dim, generator=generator, dtype=torch.float64)
        blocks.append(torch.linalg.qr(drawn).Q)
    return nn.Parameter(torch.cat(blocks)[:features].to(torch.get_default_dtype()).repeat(heads, 1, 1))


def hedgehog(x: Tensor, matrix: Tensor, joined: bool) -> Tensor:
    """φ(x) (batch, heads, length, 2·features), in float32 at least; `matrix` is (heads, features, head_dim)."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    with full_precision(x):
        projected = x.to(dtype) @ matrix.to(dtype).mT
        if joined:
            probabilities = torch.cat([2 * projected, -2 * projected], -1).softmax(-1)
        else:  # one softmax of both, so that the backward pass keeps one tensor
            probabilities = torch.stack([projected, -projected], -2).softmax(-1).flatten(-2)
        return probabilities.clamp(min=SMALLEST)


__all__ = ["SMALLEST", "hedgehog", "start_matrix"]
