"""The best of each row, with ties to the lower index: `topk` alone breaks them as it likes."""

import torch
from torch import Tensor


def best(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row (rows, width), in falling order, and where they stand."""
    count = min(count, values.shape[1])
    top, index = values.topk(min(count + 1, values.shape[1]))
    if bool((top[:, :-1] > top[:, 1:]).all()):  # no ties, so there is one answer
        return top[:, :count], index[:, :count]
    keep = among_best(values, torch.full_like(index[:, 0], count), top)
    index = keep.nonzero()[:, 1].view(-1, count)
    top, order = values.gather(1, index).sort(descending=True, stable=True)
    return top, index.gather(1, order)


def among_best(values: Tensor, count: Tensor, falling: Tensor) -> Tensor:
    """Which values are among the `count` (rows,) largest of their row; `falling` are at least those, sorted."""
    border = falling.gather(1, count[:, None] - 1)
    above, equal = values > border, values == border
    room = count[:, None] - above.sum(1, keepdim=True)
    return above | (equal & (equal.cumsum(1) <= room))


__all__ = ["among_best", "best"]
