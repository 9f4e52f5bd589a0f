"""Groups of query heads that share one head of keys and values (grouped queries), without repeating it.

Query head h reads key head h // group. Where heads differ in more than their queries (feature maps, decays, layouts),
the first query heads of all groups are computed together, then the second ones, and so on: each of these calls has as
many query heads as key heads, its queries are a view, and the keys are the same tensor every time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def members(heads: int, key_heads: int) -> list[slice]:
    """The n-th query heads of all groups, for each n; one slice of all heads if nothing is shared."""
    group = heads // key_heads
    return [slice(member, None, group) for member in range(group)]


def split_members(x: Tensor, key_heads: int) -> Sequence[Tensor]:
    """The heads of x (batch, heads, …) of each member; the gradient of all is one copy, unlike that of slices."""
    return [x] if x.shape[1] == key_heads else x.unflatten(1, (key_heads, -1)).unbind(2)


def interleave(parts: Sequence[Tensor]) -> Tensor:
    """The heads (batch, heads, …) of all members, each a result of `members`, in their order."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts), 2).flatten(1, 2)


def as_rows(x: Tensor, key_heads: int) -> Tensor:
    """(batch, heads, rows, width) -> (batch, key heads, group · rows, width), where a row needs no position."""
    return x if x.shape[1] == key_heads else x.reshape(x.shape[0], key_heads, -1, x.shape[3])


def sum_groups(x: Tensor, key_heads: int) -> Tensor:
    """The sum over the query heads of each group: (batch, key heads, …), the gradient of a repeated tensor."""
    return x if x.shape[1] == key_heads else x.unflatten(1, (key_heads, -1)).sum(2)


__all__ = ["as_rows", "interleave", "members", "split_members", "sum_groups"]
