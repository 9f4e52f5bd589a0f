"""Locality-sensitive hashing by random rotations (Reformer, Kitaev et al. 2020, section 2)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from longspan.attention.base import Shape
from longspan.attention.layouts.base import wide


def draw(shape: Shape, rounds: int, factors: Sequence[int], seed: int | None) -> Tensor:
    """Random rotations (heads, rounds, head_dim, columns); the columns of several hash factors are concatenated."""
    columns = sum(factors) // 2
    if seed is None:
        return torch.randn(shape.heads, rounds, shape.head_dim, columns)
    # Drawn in the order of Reformer's release, so that the same hash_seed gives the same rotations.
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape.heads, shape.head_dim, rounds, columns, generator=generator).transpose(1, 2).contiguous()


def buckets(q: Tensor, rotations: Tensor, factors: Sequence[int]) -> Tensor:
    """The bucket of each token in each round, (batch, heads, rounds, length)."""
    rounds, columns = rotations.shape[1], rotations.shape[3]
    rotations = rotations.to(wide(q.dtype)).transpose(1, 2).flatten(2)
    rotated = (q.to(wide(q.dtype)) @ rotations).unflatten(-1, (rounds, columns))
    bucket: Tensor | None = None
    place_value = 1
    for projections, factor in zip(rotated.split([factor // 2 for factor in factors], dim=-1), factors):
        largest = projections.abs().max(dim=-1, keepdim=True).indices
        digit = (largest + factor // 2 * (projections.gather(-1, largest) < 0))[..., 0]
        bucket = digit if bucket is None else bucket + place_value * digit
        place_value *= factor
    assert bucket is not None
    return bucket.transpose(2, 3)


def buckets_by_definition(q: Tensor, rotations: Tensor, factors: Sequence[int]) -> Tensor:
    """One round, (batch, heads, length): argmax over [xR; -xR]; several hash factors are the digits of one number."""
    rotated = q.to(wide(q.dtype)) @ rotations.to(wide(q.dtype))
    bucket, place_value = torch.zeros(q.shape[:3], dtype=torch.long, device=q.device), 1
    for projections, factor in zip(rotated.split([factor // 2 for factor in factors], dim=-1), factors):
        bucket = bucket + place_value * torch.cat([projections, -projections], dim=-1).argmax(dim=-1)
        place_value *= factor
    return bucket


__all__ = ["buckets", "buckets_by_definition", "draw"]
