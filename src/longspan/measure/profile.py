"""Time and memory of mechanisms by length, relative to dense attention: ratios, exponents and crossover lengths.

Times of different processes are compared by `Measured.work`, in units of the machine's matrix products.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from longspan import config
from longspan.attention import find
from longspan.errors import InvalidOption, suggest
from longspan.measure.case import FUSED, NAIVE, Case, Kind, Measured
from longspan.measure.run_case import without_result

NEVER = 2**30  # tokens: an extrapolated crossover beyond this counts as never
FALLING = -0.15  # slope of the ratio over the length; a flatter one may be noise


@dataclass(frozen=True)
class Crossover:
    """The length from which a mechanism is faster than the fused kernel, and stays so."""

    how: Literal["below", "between", "beyond", "never", "unknown"]  # the lengths that were measured
    length: float | None = None  # of "below" the shortest that was measured; of "beyond" extrapolated

    def __str__(self) -> str:
        """≤1K, 5.2K, ~40K; a question mark where nothing can be said."""
        if self.length is None:
            return "?" if self.how == "unknown" else self.how
        sign = {"below": "≤", "beyond": "~"}.get(self.how, "")
        for unit, size in (("M", 2**20), ("K", 2**10)):
            if self.length >= size:
                return f"{sign}{self.length / size:.3g}{unit}"
        return f"{sign}{self.length:.0f}"


@dataclass(frozen=True)
class Point:
    """One case, and its ratios: a speed of 2 is twice as fast, a memory of 2 twice as large."""

    measured: Measured
    speed_to_naive: float | None = None
    speed_to_fused: float | None = None
    memory_to_naive: float | None = None
    memory_to_fused: float | None = None


@dataclass(frozen=True)
class ProfileRow:
    """A mechanism doing one thing, at all lengths."""

    mechanism: str
    kind: Kind
    points: tuple[Point, ...]  # by length
    declared: float | None  # the power of the length, as the length grows without end
    counted: float | None  # that of the arithmetic at these lengths, where smaller terms and fixed ones count too
    time: float | None  # the same as fitted
    memory: float | None
    last_time: float | None  # between the two longest
    last_memory: float | None
    crossover: Crossover | None  # none of the fused kernel itself

    @property
    def name(self) -> str:
        """The mechanism, and its options where they are not the defaults."""
        options = self.points[0].measured.case.options
        return self.mechanism + "".join(f" {name}={value}" for name, value in options.items())

    def plain(self) -> dict[str, Any]:
        """For JSON: what was measured, and what follows from it."""
        points = []
        for point in self.points:
            found, ratios = point.measured, asdict(point)
            del ratios["measured"]
            figures = {"seconds_least": found.least, "spread": found.spread} if found.seconds else {}
            points.append({**asdict(found), **figures, "gemm_share": found.share, **ratios})
        return {**asdict(self), "points": points}


def plan(
    mechanisms: Sequence[str],
    lengths: Sequence[int],
    kinds: Sequence[Kind],
    like: Case | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Case]:
    """The cases of a profile, both dense ones among them; `like` says all else. Short ones first.

    `options` are those of mechanisms, by their names, where they are not the defaults.
    """
    for name in mechanisms:
        if name not in (NAIVE, FUSED):
            find(name)
    for name, given in (options or {}).items():
        if name not in mechanisms:
            raise InvalidOption(
                f"there are options for {name}, which is not measured: {suggest(name, list(mechanisms))}"
            )
        config.make(find(name).Options, given, name)
    if not lengths or min(lengths) < 1:
        raise InvalidOption(f"lengths must be at least 1, not {', '.join(map(str, lengths)) or 'none'}")
    like = Case(mechanism=FUSED, length=1) if like is None else like
    names = dict.fromkeys((NAIVE, FUSED, *mechanisms))
    return [
        replace(
            like,
            mechanism=name,
            length=length,
            kind=kind,
            causal=like.causal or kind == "decode",
            options=(options or {}).get(name, {}),
        )
        for kind in kinds
        for length in sorted(set(lengths))
        for name in names
    ]


def profile(
    cases: Sequence[Case],
    measure: Callable[[Case], Measured],
    progress: Callable[[Measured], None] = lambda found: None,
) -> list[ProfileRow]:
    """Measure the cases in order; after a length that failed, longer ones are not tried."""
    ended: dict[tuple[str, Kind], Measured] = {}
    found = []
    for case in cases:
        before = ended.get((case.mechanism, case.kind))
        if before is None:
            found.append(measure(case))
            if found[-1].state != "done":
                ended[case.mechanism, case.kind] = found[-1]
        else:
            found.append(without_result(case, before.state, before.error or "as at a shorter length"))
        progress(found[-1])
    return rows(found)


def rows(found: Sequence[Measured]) -> list[ProfileRow]:
    """One for each mechanism and kind, in the order in which they come."""
    made: dict[tuple[Kind, str], list[Measured]] = {}
    for each in found:
        made.setdefault((each.case.kind, each.case.mechanism), []).append(each)
    done = {(each.case.kind, each.case.mechanism, each.case.length): each for each in found if each.state == "done"}
    return [
        _row(kind, name, sorted(own, key=lambda each: each.case.length), done) for (kind, name), own in made.items()
    ]


def _row(kind: Kind, name: str, own: Sequence[Measured], done: Mapping[tuple[Kind, str, int], Measured]) -> ProfileRow:
    points = []
    for each in own:
        naive, fused = (done.get((kind, other, each.case.length)) for other in (NAIVE, FUSED))
        points.append(Point(each, speed(naive, each), speed(fused, each), _memory(each, naive), _memory(each, fused)))
    times = [(each.case.length, each.work) for each in own if each.state == "done"]
    memory = [(each.case.length, each.memory) for each in own if each.state == "done" and each.memory]
    return ProfileRow(
        mechanism=name,
        kind=kind,
        points=tuple(points),
        declared=next((each.exponent for each in own if each.exponent is not None), None),
        counted=exponent([(each.case.length, each.flops) for each in own if each.state == "done" and each.flops]),
        time=exponent(times),
        memory=exponent(memory),
        last_time=exponent(times[-2:]),
        last_memory=exponent(memory[-2:]),
        crossover=None
        if name == FUSED
        else crossover([(p.measured.case.length, 1 / p.speed_to_fused) for p in points if p.speed_to_fused]),
    )


def speed(one: Measured | None, other: Measured | None) -> float | None:
    """How many times faster the other is, both measured in processes of their own."""
    if one is None or other is None or one.state != "done" or other.state != "done":
        return None
    return one.work / other.work


def _memory(one: Measured, other: Measured | None) -> float | None:
    return None if one.memory is None or other is None or not other.memory else one.memory / other.memory


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The power of the length that fits best: least squares of the logarithms."""
    lengths = [math.log(length) for length, _ in points]
    values = [math.log(value) for _, value in points]
    middle = sum(lengths) / len(lengths) if lengths else 0.0
    wide = sum((length - middle) ** 2 for length in lengths)
    if not wide:
        return None
    return sum((length - middle) * value for length, value in zip(lengths, values)) / wide


def crossover(points: Sequence[tuple[float, float]]) -> Crossover:
    """From (length, time as a multiple of the fused kernel's), by length."""
    if not points:
        return Crossover("unknown")
    slower = [number for number, (_, ratio) in enumerate(points) if ratio >= 1]
    if not slower:
        return Crossover("below", points[0][0])
    last = slower[-1]
    length, ratio = points[last]
    if last + 1 < len(points):
        longer, faster = points[last + 1]
        share = math.log(ratio) / math.log(ratio / faster)
        return Crossover("between", length * (longer / length) ** share)
    slope = exponent(points)
    if slope is None:
        return Crossover("unknown")
    steps = math.log(ratio) / -slope if slope < FALLING else math.inf
    if steps > math.log(NEVER / length):
        return Crossover("never")
    return Crossover("beyond", length * math.exp(steps))


__all__ = ["Crossover", "Point", "ProfileRow", "crossover", "exponent", "plan", "profile", "rows", "speed"]
