"""Running values along a dimension, and ranks within groups of a sorted row.

Exported programs cannot hold `cummax`: ONNX has no such operator. They get forms without it, which need no loop over
the length either; eager and compiled code keep the faster one.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

DOUBLINGS = 24  # an exported program takes the maximum over up to 2^24 positions


def running_max(x: Tensor, dim: int) -> Tensor:
    """The largest value up to each position; of booleans, whether one was True."""
    if not torch.compiler.is_exporting():
        return x.cummax(dim).values
    if x.dtype == torch.bool:
        return x.long().cumsum(dim) > 0
    at = torch.arange(x.shape[dim], device=x.device)
    for step in range(DOUBLINGS):  # after it, each position has seen the 2^(step + 1) up to itself
        x = torch.maximum(x, x.index_select(dim, (at - (1 << step)).clamp_min(0)))
    return x


def rank_in_group(group: Tensor, groups: int, counted: Tensor | None = None) -> Tensor:
    """How many entries precede each entry within its group; of those that `counted` marks with 1, not 0, if given.

    `group` (…, length) is sorted along its last dimension, with values below `groups`.
    """
    if counted is None:
        before = torch.arange(group.shape[-1], device=group.device).expand_as(group)
        counted = torch.ones_like(group) if torch.compiler.is_exporting() else before
    else:
        before = counted.cumsum(-1) - counted
    if not torch.compiler.is_exporting():
        first = pad(group[..., 1:] != group[..., :-1], (1, 0), value=True)
        return before - before.masked_fill(~first, 0).cummax(-1).values
    sizes = torch.zeros(*group.shape[:-1], groups, dtype=counted.dtype, device=group.device)
    sizes = sizes.scatter_add(-1, group, counted)
    return before - (sizes.cumsum(-1) - sizes).gather(-1, group)


def stable_sort(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers in ascending order along the last dimension, equal ones in their old order; and where each was."""
    if not torch.compiler.is_exporting():
        value, order = x.sort(dim=-1, stable=True)
        return value, order
    length = x.shape[-1]
    key, order = (x * length + torch.arange(length, device=x.device)).sort(dim=-1)  # no two are equal
    return key // length, order


def shift(x: Tensor, by: int, value: int) -> Tensor:
    """The entry `by` places before each along the last dimension (1 or -1), and `value` where there is none."""
    if not torch.compiler.is_exporting():
        return pad(x[..., :-by], (by, 0), value=value) if by > 0 else pad(x[..., -by:], (0, -by), value=value)
    at = torch.arange(x.shape[-1], device=x.device) - by
    inside = (at >= 0) & (at < x.shape[-1])
    return x.index_select(-1, torch.where(inside, at, 0)).masked_fill(~inside, value)


__all__ = ["rank_in_group", "running_max", "shift", "stable_sort"]
