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
        result = measure(shorter(case, length))
        if result.state == "done" and length == case.length:
            return measured(result)
        if result.state == "done":
            half = measure(shorter(case, length // 2))
            return extrapolated(case, half, result) if half.state == "done" else half.error or half.state
        length //= 4
        if result.state not in ("slow", "memory") or length // 2 < SHORTEST:
            return result.error or result.state


def scaled_by_power(case: Case, shorter_result: Measured) -> CaseCost:
    """Extrapolate the time from one shorter length by the declared exponent; memory stays unknown."""
    times = case.length / shorter_result.case.length
    power = 1.0 if shorter_result.exponent is None else shorter_result.exponent
    return CaseCost(case=case, seconds=shorter_result.least * times**power, memory=None, by=(shorter_result,))


def measured(result: Measured) -> CaseCost:
    return CaseCost(case=result.case, seconds=result.least, memory=result.memory, by=(result,))


def extrapolated(case: Case, shorter_result: Measured, longer_result: Measured) -> CaseCost:
    """Extrapolate from two lengths, the second one longer."""
    lengths = shorter_result.case.length, longer_result.case.length
    power = 1.0 if longer_result.exponent is None else longer_result.exponent
    return CaseCost(
        case=case,
        seconds=_time(lengths, (shorter_result.least, longer_result.least), power)(case.length),
        memory=_memory(lengths, (shorter_result.memory, longer_result.memory), case),
        by=(shorter_result, longer_result),
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


def _memory(lengths: tuple[int, int], bytes_at: tuple[int | None, int | None], case: Case) -> int | None:
    at_shorter, at_longer = bytes_at
    if at_shorter is None or at_longer is None:
        return None
    slowest = 0.0 if case.kind == "decode" else 1.0
    exponent = (
        math.log(at_longer / at_shorter) / math.log(lengths[1] / lengths[0]) if at_shorter and at_longer else slowest
    )
    return round(float(at_longer * (case.length / lengths[1]) ** min(2.0, max(slowest, exponent))))


__all__ = ["QUICK_LENGTH", "SHORTEST", "CaseCost", "extrapolated", "measure_or_estimate", "measured", "scaled_by_power"]
