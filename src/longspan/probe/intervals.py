"""Bootstrap intervals; `adapt.measures.intervals` has Wilson's for shares."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

DRAWS = 2000


def bootstrap(
    values: Sequence[float],
    statistic: Callable[[Tensor], Tensor] | None = None,
    *,
    groups: int = 1,
    seed: int = 0,
) -> tuple[float, float]:
    """The 95 % percentile interval of a statistic over rows (default: the mean), from 2,000 resamples.

    `statistic` maps (draws, values) to (draws,). With `groups`, the intervals of so many groups hold together with
    95 % (Bonferroni).
    """
    numbers = torch.tensor(values, dtype=torch.float64)
    if len(numbers) < 2:
        return float("nan"), float("nan")
    picks = torch.randint(len(numbers), (DRAWS, len(numbers)), generator=torch.Generator().manual_seed(seed))
    drawn = numbers[picks]
    results = drawn.mean(1) if statistic is None else statistic(drawn)
    tail = 0.025 / groups
    low, high = results.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high


__all__ = ["bootstrap"]
