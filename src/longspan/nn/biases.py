"""Position biases added to attention scores, one number per head and offset (key - query)."""

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Int
from torch import Tensor, nn

from longspan.errors import InvalidInput, InvalidOption
from longspan.shapes import Bias


class DistanceBias(nn.Module, ABC):
    """A number per head and offset (key - query), added to the scaled score."""

    @abstractmethod
    def table(self, reach: int) -> Bias:
        """(heads, 2·reach - 1): the offsets -(reach - 1) .. reach - 1, so that the middle one is offset 0."""


def _offsets(reach: int, device: torch.device) -> Int[Tensor, " offsets"]:
    if reach < 1:
        raise InvalidInput(f"expected a reach of at least 1, got {reach}")
    return torch.arange(1 - reach, reach, device=device)


class Alibi(DistanceBias):
    """-slope·|offset|, a fixed slope per head (Press et al. 2022, section 3). Not trained, any length."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        if heads < 1:
            raise InvalidOption(f"heads must be at least 1, got {heads}")
        self.register_buffer("slopes", torch.tensor(_slopes(heads)), persistent=False)

    def table(self, reach: int) -> Bias:
        # At least float32: half precision cannot count offsets past 2048.
        slopes = self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))
        return -slopes[:, None] * _offsets(reach, slopes.device).abs()

    def extra_repr(self) -> str:
        return f"heads={len(self.slopes)}"


def _slopes(heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), … for n heads; past a power of two, the rest are from 2n heads (authors' code)."""
    below = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * k / below) for k in range(1, below + 1)]
    between = [2 ** (-4 * k / below) for k in range(1, 2 * below, 2)]
    return slopes + between[: heads - below]


class RelativeBias(DistanceBias):
    """A trained number per bucket of offsets (Raffel et al. 2020, section 2.1).

    Half of the buckets are for one distance each; the others grow logarithmically up to `max_distance`, and the last is
    for all distances beyond. `bidirectional` has buckets for both directions; otherwise the future shares bucket 0.
    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> None:
        super().__init__()
        least = 4 if bidirectional else 2
        if buckets % 2 or buckets < least:
            raise InvalidOption(f"buckets must be even and at least {least}, got {buckets}")
        if max_distance <= buckets // least:
            raise InvalidOption(
                f"max_distance must be above {buckets // least}, up to which {buckets} buckets have one distance each, "
                f"got {max_distance}"
            )
        self.buckets = buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.randn(buckets, heads) * 0.02)  # (buckets, heads), as in T5's checkpoints

    def bucket(self, offsets: Int[Tensor, "*places"]) -> Int[Tensor, "*places"]:
        """The bucket of each offset (key - query)."""
        count = self.buckets // 2 if self.bidirectional else self.buckets
        first = count * (offsets > 0) if self.bidirectional else torch.zeros_like(offsets)
        distance = offsets.abs() if self.bidirectional else (-offsets).clamp(min=0)
        single = count // 2
        # float32 on purpose, as in T5: other rounding would move bucket edges under its trained weights.
        growth = torch.log(distance.clamp(min=single).float() / single) / math.log(self.max_distance / single)
        wide = (single + (growth * (count - single)).long()).clamp(max=count - 1)
        return first + torch.where(distance < single, distance, wide)

    def table(self, reach: int) -> Bias:
        return self.weight[self.bucket(_offsets(reach, self.weight.device))].T

    def extra_repr(self) -> str:
        return f"buckets={self.buckets}, max_distance={self.max_distance}, bidirectional={self.bidirectional}"


class ClippedBias(DistanceBias):
    """A trained number per offset within `reach`; others share the outermost (Shaw et al. 2018, section 3.2)."""

    def __init__(self, heads: int, reach: int) -> None:
        super().__init__()
        if reach < 1:
            raise InvalidOption(f"reach must be at least 1, got {reach}")
        self.reach = reach
        self.weight = nn.Parameter(torch.randn(heads, 2 * reach - 1) * 0.02)

    def table(self, reach: int) -> Bias:
        last = self.reach - 1
        return self.weight[:, _offsets(reach, self.weight.device).clamp(-last, last) + last]

    def extra_repr(self) -> str:
        return f"reach={self.reach}"


__all__ = ["Alibi", "ClippedBias", "DistanceBias", "RelativeBias"]
