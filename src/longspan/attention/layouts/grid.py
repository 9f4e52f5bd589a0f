"""Attention along one axis of a grid (K6), and the relative term inside a chunk (K8)."""

import math

from torch import Tensor
from torch.nn.functional import pad


def fold_axis(x: Tensor, axes: tuple[int, ...], axis: int) -> Tensor:
    """Attention along one axis of a grid: the other axes go into the batch (K6).

    (batch, heads, product of axes, width) -> (batch · others, heads, axes[axis], width)
    """
    grid = x.unflatten(2, axes).movedim(2 + axis, -2)  # batch heads others… axis width
    return grid.movedim(1, -3).flatten(0, -4)


def unfold_axis(x: Tensor, axes: tuple[int, ...], axis: int) -> Tensor:
    """The inverse of `fold_axis`."""
    others = axes[:axis] + axes[axis + 1 :]
    grid = x.unflatten(0, (x.shape[0] // math.prod(others), *others)).movedim(-3, 1)
    return grid.movedim(-2, 2 + axis).flatten(2, -2)


def relative_scores(q: Tensor, table: Tensor) -> Tensor:
    """The relative term q_a · r_(offset) inside a chunk, by one matrix product and a skew (K8).

    q is (…, rows, width) and table (…, rows + keys - 1, width), whose row t belongs to the offset
    key - query = t - (rows - 1); the result is (…, rows, keys).
    """
    rows = q.shape[-2]
    return skew(q @ table.mT, table.shape[-2] - rows + 1)


def skew(x: Tensor, keys: int) -> Tensor:
    """out[a, c] = x[a, c - a + rows - 1] for x (…, rows, rows + keys - 1): every row moved one further to the left."""
    rows, length = x.shape[-2], x.shape[-1]
    # One more column makes the flattened rows start one later each time: dropping rows - 1 numbers aligns row 0.
    flat = pad(x, (0, 1)).flatten(-2)[..., rows - 1 :]
    flat = (
        flat[..., : rows * length]
        if flat.shape[-1] >= rows * length
        else pad(flat, (0, rows * length - flat.shape[-1]))
    )
    return flat.unflatten(-1, (rows, length))[..., :keys]
