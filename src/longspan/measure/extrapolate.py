"""Time and memory of a case: measured or, if that would take too long, extrapolated from two shorter lengths.

Time is extrapolated as a·n^(p-1) + b·n^p with the exponent p that the mechanism declares, which covers both terms of
an order such as n·stride + n²/stride; memory by the exponent that the two measurements show.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from longspan.measure.case import Case, Measured
from longspan.measure.requirements import shorter
from longspan.measure.store import Measure

QUICK_LENGTH = 1024  # most tokens that a quick answer measures
SHORTEST = 256  # tokens: shorter sequences do not predict long ones


@dataclass(frozen=True, kw_only=True)
class CaseCost:
    """Time and memory of a case; `by` are the measurements: of itself, or of one or two shorter sequences."""

    case: Case
    seconds: float
    memory: int | None
    by: tuple[Measured, ...]

    @property
    def estimated_from(self) -> tuple[int, ...]:
        """The lengths it is estimated from; empty if it was measured."""
        lengths = tuple(measurement.case.length for measurement in self.by)
        return () if lengths == (self.case.length,) else lengths


def measure_or_estimate(case: Case, measure: Measure) -> CaseCost | str:
    """The cost of a case, or the reason why it is unknown."""
    length = case.length
    while True:
        found = measure(shorter(case, length))
        if found.state == "done" and length == case.length:
            return measured(found)
        if found.state == "done":
            half = measure(shorter(case, length // 2))
            return extrapolated(case, half, found) if half.state == "done" else half.error or half.state
        length //= 4
        if found.state not in ("slow", "memory") or length // 2 < SHORTEST:
            return found.error or found.state


def scaled_by_power(case: Case, found: Measured) -> CaseCost:
    """Extrapolate the time from one shorter length by the declared exponent; memory stays unknown."""
    times = case.length / found.case.length
    power = 1.0 if found.exponent is None else found.exponent
    return CaseCost(case=case, seconds=found.least * times**power, memory=None, by=(found,))


def measured(found: Measured) -> CaseCost:
    return CaseCost(case=found.case, seconds=found.least, memory=found.memory, by=(found,))


def extrapolated(case: Case, one: Measured, two: Measured) -> CaseCost:
    """Extrapolate from two lengths, the second one longer."""
    lengths = one.case.length, two.case.length
    power = 1.0 if two.exponent is None else two.exponent
    return CaseCost(
        case=case,
        seconds=_time(lengths, (one.least, two.least), power)(case.length),
        memory=_memory(lengths, (one.memory, two.memory), case),
        by=(one, two),
    )


def _time(lengths: tuple[int, int], seconds: tuple[float, float], power: float) -> Callable[[int], float]:
    lower = max(0.0, power - 1)
    (n, m), (s, t) = lengths, seconds
    if power > lower:
        fixed = n**lower * m**power - m**lower * n**power
        a, b = (s * m**power - t * n**power) / fixed, (n**lower * t - m**lower * s) / fixed
        if a >= 0 and b >= 0:
            return lambda length: float(a * length**lower + b * length**power)
    # One term is within the noise: scale all of it by the exponent, which overestimates rather than underestimates.
    return lambda length: float(t * (length / m) ** power)


def _memory(lengths: tuple[int, int], found: tuple[int | None, int | None], case: Case) -> int | None:
    one, two = found
    if one is None or two is None:
        return None
    slowest = 0.0 if case.kind == "decode" else 1.0
    shown = math.log(two / one) / math.log(lengths[1] / lengths[0]) if one and two else slowest
    return round(float(two * (case.length / lengths[1]) ** min(2.0, max(slowest, shown))))


__all__ = ["QUICK_LENGTH", "SHORTEST", "CaseCost", "extrapolated", "measure_or_estimate", "measured", "scaled_by_power"]
