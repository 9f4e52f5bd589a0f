"""Intervals of 95 %: Wilson's for a share, the paired bootstrap for a mean difference."""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import torch
from torch import Tensor

NORMAL = 1.959964  # 97.5 % quantile of the normal distribution
DRAWS = 2000  # of the bootstrap


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval; both ends are None if one observation gives no interval."""

    mean: float
    low: float | None
    high: float | None


def wilson(hits: int, count: int, *, groups: int = 1) -> tuple[float, float]:
    """The interval of a share (Wilson 1927), which stays inside 0 and 1 and is right for few trials.

    With `groups`, the intervals of so many groups hold together with 95 % (Bonferroni), so each is wider.
    """
    if count == 0:
        return 0.0, 1.0
    normal = NORMAL if groups == 1 else NormalDist().inv_cdf(1 - 0.025 / groups)
    share, square = hits / count, normal**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = normal * sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return (0.0 if hits == 0 else middle - half), (1.0 if hits == count else middle + half)


def paired_bootstrap(differences: Tensor, *, seed: int = 0, draws: int = DRAWS) -> Estimate:
    """The mean of one difference per text, with the interval of means over texts drawn with replacement."""
    values = differences.double()
    count = len(values)
    if count < 2:
        return Estimate(float(values.mean()), None, None)
    drawn = torch.randint(count, (draws, count), generator=torch.Generator().manual_seed(seed))
    means = values.cpu()[drawn].mean(1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Estimate(float(values.mean()), low, high)


__all__ = ["Estimate", "paired_bootstrap", "wilson"]
