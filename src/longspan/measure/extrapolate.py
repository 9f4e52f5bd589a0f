"""What a case takes: measured, or where nobody would wait for it, foretold from two shorter lengths.

Time is foretold as a·n^(p-1) + b·n^p with the power p that the mechanism declares, so that both parts of an order such
as n·stride + n²/stride are in it; memory by the power of the length that the two measurements show.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from longspan.measure.case import Case, Measured
from longspan.measure.requirements import shorter
from longspan.measure.store import Measure

QUICK_LENGTH = 1024  # tokens that a quick answer measures at most
SHORTEST = 256  # tokens: shorter texts tell nothing of long ones


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Time and memory of a case; `by` is what was measured for it: itself, or shorter texts, one or two."""

    case: Case
    seconds: float
    memory: int | None
    by: tuple[Measured, ...]

    @property
    def foretold(self) -> tuple[int, ...]:
        """The lengths that it is foretold from; none where it was measured."""
        lengths = tuple(each.case.length for each in self.by)
        return () if lengths == (self.case.length,) else lengths


def taken(case: Case, measure: Measure) -> Taken | str:
    """What the case takes; or, where that cannot be known, why not."""
    length = case.length
    while True:
        found = measure(shorter(case, length))
        if found.state == "done" and length == case.length:
            return measured(found)
        if found.state == "done":
            half = measure(shorter(case, length // 2))
            return foretold(case, half, found) if half.state == "done" else half.error or half.state
        length //= 4
        if found.state not in ("slow", "memory") or length // 2 < SHORTEST:
            return found.error or found.state


def scaled(case: Case, found: Measured) -> Taken:
    """From one shorter length, by the declared power of time; how memory grows is not known from one."""
    times = case.length / found.case.length
    power = 1.0 if found.exponent is None else found.exponent
    return Taken(case=case, seconds=found.least * times**power, memory=None, by=(found,))


def measured(found: Measured) -> Taken:
    return Taken(case=found.case, seconds=found.least, memory=found.memory, by=(found,))


def foretold(case: Case, one: Measured, two: Measured) -> Taken:
    """From two lengths, the second the longer."""
    lengths = one.case.length, two.case.length
    power = 1.0 if two.exponent is None else two.exponent
    return Taken(
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
    # One part is lost in the noise: all of it grows as the order says, which is rather too much than too little.
    return lambda length: float(t * (length / m) ** power)


def _memory(lengths: tuple[int, int], found: tuple[int | None, int | None], case: Case) -> int | None:
    one, two = found
    if one is None or two is None:
        return None
    slowest = 0.0 if case.kind == "decode" else 1.0
    shown = math.log(two / one) / math.log(lengths[1] / lengths[0]) if one and two else slowest
    return round(two * (case.length / lengths[1]) ** min(2.0, max(slowest, shown)))


__all__ = ["QUICK_LENGTH", "SHORTEST", "Taken", "foretold", "measured", "scaled", "taken"]
