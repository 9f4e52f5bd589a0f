"""Fourier features of positions (Jaegle et al. 2021, section 3.2): they are concatenated to the input, not added."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from longspan.errors import InvalidInput, InvalidOption


class FourierPositions(nn.Module):
    """sin(f π x) and cos(f π x) of each coordinate x in [-1, 1], and x itself.

    `bands` frequencies f are spaced evenly from 1 to half of `resolutions`: the Nyquist frequency of an axis with so
    many samples. An axis gives 2 · bands + 1 features.
    """

    frequencies: Tensor

    def __init__(self, resolutions: tuple[int, ...], bands: int) -> None:
        super().__init__()
        if bands < 1 or not resolutions or min(resolutions) < 1:
            raise InvalidOption(f"bands and resolutions must be at least 1, not {bands} and {resolutions}")
        self.axes, self.width = len(resolutions), len(resolutions) * (2 * bands + 1)
        rows = [torch.linspace(1.0, max(size / 2, 1.0), bands) for size in resolutions]
        self.register_buffer("frequencies", torch.stack(rows), persistent=False)

    def forward(self, positions: Float[Tensor, "*batch axes"]) -> Float[Tensor, "*batch width"]:
        if positions.shape[-1] != self.axes:
            raise InvalidInput(f"expected {self.axes} coordinates per element, got {tuple(positions.shape)}")
        # In float32 at least: half precision cannot tell neighbouring pixels of a large image apart.
        wide = positions.to(torch.promote_types(positions.dtype, torch.float32))[..., None]
        angles = torch.pi * wide * self.frequencies.to(wide.dtype)
        return torch.cat([angles.sin(), angles.cos(), wide], -1).flatten(-2).to(positions.dtype)


def grid(shape: tuple[int, ...], *, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "elements axes"]:
    """The coordinates of a grid, row by row: each axis runs from -1 to 1 (an axis of one element is at 0)."""
    lines = [
        torch.linspace(-1.0, 1.0, size, device=device, dtype=dtype)
        if size > 1
        else torch.zeros(1, device=device, dtype=dtype)
        for size in shape
    ]
    return torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).flatten(0, -2)


__all__ = ["FourierPositions", "grid"]
