"""Patch embedding of images: one token per patch (Dosovitskiy et al. 2021, section 3.1)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.dropout import Dropout
from longspan.nn.linear import Linear
from longspan.nn.positions import LearnedPositions
from longspan.shapes import Hidden

Size = tuple[int, int]  # height, width
Images = Float[Tensor, "batch channels height width"]


class PatchEmbedding(nn.Module):
    """One linear layer for the pixels of each patch, a class token in front, learned positions, dropout.

    `distillation` adds DeiT's second token (Touvron et al. 2020), which learns from a teacher.

    Pixels past the last whole patch are not read, as in a convolution with stride `patch`. There is one position per
    patch of an image of size `image`. For other sizes, `interpolate=True` resizes the grid of positions (bicubic,
    corners not aligned); the positions of the learned tokens stay the same.
    """

    def __init__(
        self,
        image: Size,
        patch: Size,
        channels: int,
        width: int,
        *,
        class_token: bool = True,
        distillation: bool = False,
        positions: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.image, self.patch, self.channels = image, patch, channels
        self.grid = (image[0] // patch[0], image[1] // patch[1])
        if 0 in self.grid:
            raise InvalidOption(f"an image of {_spell(image)} has no whole patch of {_spell(patch)}; make it smaller")
        self.linear = Linear(channels * math.prod(patch), width)
        self.token = nn.Parameter(torch.zeros(width)) if class_token else None
        self.distillation = nn.Parameter(torch.zeros(width)) if distillation else None  # after the class token
        self.position = LearnedPositions(self.tokens, width) if positions else None
        self.dropout = Dropout(dropout)
        nn.init.xavier_uniform_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    @property
    def tokens(self) -> int:
        """The number of tokens of an image of size `image`."""
        return math.prod(self.grid) + len(self._extra())

    def forward(self, images: Images, *, interpolate: bool = False) -> Hidden:
        self._check(images, interpolate)
        patches = self.cut(images)
        x = self.linear(patches.flatten(1, 2))
        if self._extra():
            x = torch.cat([torch.stack(self._extra()).expand(x.shape[0], -1, -1), x], 1)
        if self.position is not None:
            x = x + self.positions((patches.shape[1], patches.shape[2]))
        out: Tensor = self.dropout(x)
        return out

    def _extra(self) -> list[Tensor]:
        """The learned tokens in front of the patches."""
        return [token for token in (self.token, self.distillation) if token is not None]

    def cut(self, images: Images) -> Float[Tensor, "batch rows columns pixels"]:
        """The patches; the pixels of each are ordered by channel, row, column."""
        (tall, broad), (height, width) = self.patch, images.shape[2:]
        rows, columns = height // tall, width // broad
        whole = images[..., : rows * tall, : columns * broad]
        tiles: Tensor = whole.unflatten(3, (columns, broad)).unflatten(2, (rows, tall))
        return tiles.permute(0, 2, 4, 1, 3, 5).flatten(3)

    def positions(self, grid: Size) -> Float[Tensor, "tokens width"]:
        """The positions of a grid of patches, those of the learned tokens first."""
        assert self.position is not None
        table = self.position.weight
        if grid == self.grid:
            return table
        first = len(table) - math.prod(self.grid)
        known = table[first:].T.unflatten(1, self.grid)
        stretched = functional.interpolate(known[None], size=grid, mode="bicubic", align_corners=False)[0]
        return torch.cat([table[:first], stretched.flatten(1).T])

    def _check(self, images: Tensor, interpolate: bool) -> None:
        if images.ndim != 4 or images.shape[1] != self.channels:
            raise InvalidInput(
                f"expected images (batch, {self.channels} channels, height, width), got {tuple(images.shape)}"
            )
        if images.shape[0] == 0:
            raise InvalidInput(f"expected at least one image, got a batch of 0: {tuple(images.shape)}")
        if not images.is_floating_point():
            raise InvalidInput(f"expected images of a floating-point type, got {images.dtype}; try images / 255")
        size = (images.shape[2], images.shape[3])
        if self.position is not None and size != self.image and not interpolate:
            raise InvalidInput(
                f"expected images of {_spell(self.image)} pixels, got {_spell(size)}; "
                "resize them, or give interpolate=True to resize the grid of positions"
            )
        if size[0] < self.patch[0] or size[1] < self.patch[1]:
            raise InvalidInput(f"expected images of at least one patch of {_spell(self.patch)}, got {_spell(size)}")

    def extra_repr(self) -> str:
        return f"image={self.image}, patch={self.patch}, channels={self.channels}"


def pair(value: int | tuple[int, ...], name: str) -> Size:
    """Height and width, from one number for both or from two."""
    if isinstance(value, int):
        return value, value
    if len(value) != 2:
        raise InvalidOption(f"option {name} must be a number, or height and width, not {value!r}")
    return value[0], value[1]


def _spell(size: Size) -> str:
    return f"{size[0]} × {size[1]}"


__all__ = ["Images", "PatchEmbedding", "Size", "pair"]
