"""Index arithmetic of grids: folding an axis, block-raster order, and skewed relative positions."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad


def fold_axis(x: Tensor, axes: tuple[int, ...], axis: int) -> Tensor:
    """Fold all axes of a grid but one into the batch, for attention along that axis.

    (batch, heads, product of axes, width) -> (batch · others, heads, axes[axis], width)
    """
    grid: Tensor = x.unflatten(2, axes).movedim(2 + axis, -2)  # batch heads others… axis width
    return grid.movedim(1, -3).flatten(0, -4)


def unfold_axis(x: Tensor, axes: tuple[int, ...], axis: int) -> Tensor:
    """The inverse of `fold_axis`."""
    others = axes[:axis] + axes[axis + 1 :]
    grid: Tensor = x.unflatten(0, (x.shape[0] // math.prod(others), *others)).movedim(-3, 1)
    return grid.movedim(-2, 2 + axis).flatten(2, -2)


def raster_to_blocks(
    height: int, width: int, block: tuple[int, int], device: torch.device | str | None = None
) -> Tensor:
    """The pixels of an image in block-raster order: `image[:, raster_to_blocks(…)]` is the sequence to generate.

    Blocks are in raster order, and so are the pixels of a block; blocks at the right and lower border may be smaller.
    """
    row, column = position_in_blocks(torch.arange(height * width, device=device), height, width, block)
    return row * width + column


def blocks_to_raster(
    height: int, width: int, block: tuple[int, int], device: torch.device | str | None = None
) -> Tensor:
    """The inverse of `raster_to_blocks`: `sequence[:, blocks_to_raster(…)]` is the image, row by row."""
    row = torch.arange(height, device=device)[:, None]
    return rank_in_blocks(row, torch.arange(width, device=device), height, width, block).flatten()


def rank_in_blocks(row: Tensor, column: Tensor, height: int | None, width: int, block: tuple[int, int]) -> Tensor:
    """The index of a pixel in block-raster order; without `height`, the number of rows is unlimited."""
    block_row, within_row = row // block[0], row % block[0]
    block_column, within_column = column // block[1], column % block[1]
    tall = block[0] if height is None else (height - block_row * block[0]).clamp(max=block[0])
    broad = (width - block_column * block[1]).clamp(max=block[1])
    before = block_row * (block[0] * width) + block_column * block[1] * tall  # whole rows of blocks, whole blocks
    return before + within_row * broad + within_column


def position_in_blocks(index: Tensor, height: int | None, width: int, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The row and column of an index in block-raster order: the inverse of `rank_in_blocks`."""
    block_row, rest = index // (block[0] * width), index % (block[0] * width)
    tall = block[0] if height is None else (height - block_row * block[0]).clamp(max=block[0])
    block_column = rest // (block[1] * tall)
    rest = rest - block_column * block[1] * tall
    broad = (width - block_column * block[1]).clamp(max=block[1])
    return block_row * block[0] + rest // broad, block_column * block[1] + rest % broad


def relative_scores(q: Tensor, table: Tensor) -> Tensor:
    """The relative term q_a · r_(offset) inside a chunk, by one matrix product and a skew (Transformer-XL, appendix B).

    q is (…, rows, width) and table (…, rows + keys - 1, width), whose row t belongs to the offset
    key - query = t - (rows - 1); the result is (…, rows, keys).
    """
    rows = q.shape[-2]
    return skew(q @ table.mT, table.shape[-2] - rows + 1)


def skew(x: Tensor, keys: int) -> Tensor:
    """out[a, c] = x[a, c - a + rows - 1] for x (…, rows, rows + keys - 1): each row shifts one further to the right."""
    rows, length = x.shape[-2], x.shape[-1]
    # With one more column, each flattened row starts one later; dropping rows - 1 numbers aligns row 0.
    flat = pad(x, (0, 1)).flatten(-2)[..., rows - 1 :]
    flat = (
        flat[..., : rows * length]
        if flat.shape[-1] >= rows * length
        else pad(flat, (0, rows * length - flat.shape[-1]))
    )
    skewed: Tensor = flat.unflatten(-1, (rows, length))
    return skewed[..., :keys]
