"""The largest numbers of each row, twice as fast as `torch.topk` when few of thousands are wanted."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

MEMBERS = 8  # most members of a group


def largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest numbers of each row and their indices, in no order.

    Rows are split into groups. A number can be among the largest only if its group's maximum is among the largest
    maxima, so only those groups are searched. If a row has fewer than `count` numbers above -inf, the indices of the
    rest are arbitrary.
    """
    # The size of a group depends on the length, which a traced graph does not know.
    members = 1 if torch.compiler.is_compiling() else min(MEMBERS, math.isqrt(x.shape[-1] // max(count, 1)))
    if members < 3:
        values, indices = x.topk(count, dim=-1, sorted=False)
        return values, indices
    groups = -(-x.shape[-1] // members)
    # The members of a group are `groups` apart, so the maxima are taken over whole rows.
    rows = pad(x, (0, members * groups - x.shape[-1]), value=-torch.inf).unflatten(-1, (members, groups))
    chosen = rows.amax(-2).topk(count, dim=-1, sorted=False).indices
    candidates = (chosen[..., None, :] + groups * torch.arange(members, device=x.device)[:, None]).flatten(-2)
    values, indices = rows.flatten(-2).gather(-1, candidates).topk(count, dim=-1, sorted=False)
    return values, candidates.gather(-1, indices)


__all__ = ["largest"]
