"""Means over seeds, standard deviations, and confidence intervals for few seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from statistics import fmean, stdev

NORMAL = 1.959964  # 97.5 % quantile of the normal distribution

# The same quantile of Student's t with 1, 2, … degrees of freedom.
STUDENT = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


def student(degrees: int) -> float:
    """The two-sided 95 % point of t; beyond the table by the Cornish-Fisher expansion, accurate to 1e-4."""
    if degrees <= len(STUDENT):
        return STUDENT[degrees - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def standard_error(share: float, count: int) -> float:
    """Standard error of an accuracy measured on `count` examples."""
    return sqrt(max(0.0, share * (1 - share)) / count)


@dataclass(frozen=True)
class Score:
    """An accuracy over seeds, from 0 to 1; `half` is half the width of its 95 % interval."""

    mean: float
    deviation: float | None
    half: float | None
    seeds: int
    by: str  # what the interval is over
    count: int | None  # test examples

    @property
    def error(self) -> float | None:
        """Standard error due to the size of the test set alone."""
        return None if self.count is None else standard_error(self.mean, self.count)

    @property
    def noise(self) -> float | None:
        """Half of the 95 % interval, over seeds or over the test set, whichever is wider."""
        known = [half for half in (self.half, None if self.error is None else NORMAL * self.error) if half is not None]
        return max(known, default=None)

    def separate(self, other: "Score") -> bool:
        """Whether the two differ by more than their combined noise."""
        if self.noise is None or other.noise is None:
            return False
        return abs(self.mean - other.mean) > hypot(self.noise, other.noise)

    def above(self, other: float) -> bool:
        """Whether it is higher by more than three standard errors of the test set."""
        return self.error is not None and self.mean - other > 3 * self.error


def score(values: Sequence[float], count: int | None) -> Score:
    """The interval is over seeds if there are two or more, otherwise over the test examples."""
    mean, seeds = fmean(values), len(values)
    if seeds > 1:
        deviation = stdev(values)
        half = student(seeds - 1) * deviation / sqrt(seeds)
        return Score(mean, deviation, half, seeds, f"t over {seeds} seeds", count)
    if count:
        half = NORMAL * standard_error(mean, count)
        return Score(mean, None, half, 1, f"binomial, {count:,} test examples, one seed", count)
    return Score(mean, None, None, 1, "one seed, size of the test set unknown", None)


def mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean of several curves, linearly interpolated, over the range that all of them cover."""
    return [(x, mean) for x, mean, _ in spread_curve(curves)]


def spread_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float, float]]:
    """Like `mean_curve`, with the standard deviation (n - 1) at each point; 0 for one curve."""
    curves = [sorted(curve) for curve in curves if curve]
    if not curves:
        return []
    begin, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    places = sorted({x for curve in curves for x, _ in curve if begin <= x <= end})
    spread = []
    for x in places:
        values = [_interpolate(curve, x) for curve in curves]
        spread.append((x, fmean(values), stdev(values) if len(values) > 1 else 0.0))
    return spread


def _interpolate(curve: Sequence[tuple[float, float]], x: float) -> float:
    before, after = curve[0], curve[-1]
    for point in curve:
        if point[0] <= x:
            before = point
        if point[0] >= x:
            after = point
            break
    width = after[0] - before[0]
    return before[1] if width == 0 else before[1] + (after[1] - before[1]) * (x - before[0]) / width
