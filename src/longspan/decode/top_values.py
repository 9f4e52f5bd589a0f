"""Top-k with deterministic ties: the lower index wins, which `topk` does not guarantee."""

import torch
from torch import Tensor


def top_values(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row (rows, width), in falling order, and their indices."""
    count = min(count, values.shape[1])
    top, index = values.topk(min(count + 1, values.shape[1]))
    if bool((top[:, :-1] > top[:, 1:]).all()):  # no ties
        return top[:, :count], index[:, :count]
    keep = among_top(values, torch.full_like(index[:, 0], count), top)
    index = keep.nonzero()[:, 1].view(-1, count)
    top, order = values.gather(1, index).sort(descending=True, stable=True)
    return top, index.gather(1, order)


def among_top(values: Tensor, count: Tensor, falling: Tensor) -> Tensor:
    """Which values are among the `count` (rows,) largest of their row; `falling` contains at least those, sorted."""
    border = falling.gather(1, count[:, None] - 1)
    above, equal = values > border, values == border
    room = count[:, None] - above.sum(1, keepdim=True)
    return above | (equal & (equal.cumsum(1) <= room))


__all__ = ["among_top", "top_values"]
