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
    length: float | None = None  # "below": the shortest one measured; "beyond": extrapolated

    def __str__(self) -> str:
        """Such as ≤1K, 5.2K or ~40K; a question mark if unknown."""
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
    declared: float | None  # the declared exponent of the length, for long sequences
    counted: float | None  # the exponent of the counted FLOPs at these lengths, where lower-order terms matter too
    time: float | None  # fitted exponents
    memory: float | None
    last_time: float | None  # exponents between the two longest lengths
    last_memory: float | None
    crossover: Crossover | None  # None for the fused kernel itself

    @property
    def name(self) -> str:
        """The mechanism, and its options where they are not the defaults."""
        options = self.points[0].measured.case.options
        return self.mechanism + "".join(f" {name}={value}" for name, value in options.items())

    def plain(self) -> dict[str, Any]:
        """The measurements and what follows from them, for JSON."""
        points = []
        for point in self.points:
            measured, ratios = point.measured, asdict(point)
            del ratios["measured"]
            figures = {"seconds_least": measured.least, "spread": measured.spread} if measured.seconds else {}
            points.append({**asdict(measured), **figures, "gemm_share": measured.share, **ratios})
        return {**asdict(self), "points": points}


def plan(
    mechanisms: Sequence[str],
    lengths: Sequence[int],
    kinds: Sequence[Kind],
    like: Case | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Case]:
    """The cases of a profile, with both dense baselines, short ones first; `like` gives all other settings.

    `options` are those of mechanisms, by name, that differ from the defaults.
    """
    for name in mechanisms:
        if name not in (NAIVE, FUSED):
            find(name)
    for name, values in (options or {}).items():
        if name not in mechanisms:
            raise InvalidOption(
                f"there are options for {name}, which is not measured: {suggest(name, list(mechanisms))}"
            )
        config.make(find(name).Options, values, name)
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
    progress: Callable[[Measured], None] = lambda measured: None,
) -> list[ProfileRow]:
    """Measure the cases in order; after a length that failed, longer ones are not tried."""
    ended: dict[tuple[str, Kind], Measured] = {}
    results = []
    for case in cases:
        before = ended.get((case.mechanism, case.kind))
        if before is None:
            results.append(measure(case))
            if results[-1].state != "done":
                ended[case.mechanism, case.kind] = results[-1]
        else:
            results.append(without_result(case, before.state, before.error or "as at a shorter length"))
        progress(results[-1])
    return rows(results)


def rows(results: Sequence[Measured]) -> list[ProfileRow]:
    """A row for each mechanism and kind, in the order of the measurements."""
    groups: dict[tuple[Kind, str], list[Measured]] = {}
    for measured in results:
        groups.setdefault((measured.case.kind, measured.case.mechanism), []).append(measured)
    done = {
        (measured.case.kind, measured.case.mechanism, measured.case.length): measured
        for measured in results
        if measured.state == "done"
    }
    return [
        _row(kind, name, sorted(group, key=lambda measured: measured.case.length), done)
        for (kind, name), group in groups.items()
    ]


def _row(
    kind: Kind, name: str, results: Sequence[Measured], done: Mapping[tuple[Kind, str, int], Measured]
) -> ProfileRow:
    points = []
    for measured in results:
        naive, fused = (done.get((kind, other, measured.case.length)) for other in (NAIVE, FUSED))
        points.append(
            Point(
                measured,
                speed(naive, measured),
                speed(fused, measured),
                _memory(measured, naive),
                _memory(measured, fused),
            )
        )
    times = [(measured.case.length, measured.work) for measured in results if measured.state == "done"]
    memory = [
        (measured.case.length, measured.memory) for measured in results if measured.state == "done" and measured.memory
    ]
    return ProfileRow(
        mechanism=name,
        kind=kind,
        points=tuple(points),
        declared=next((measured.exponent for measured in results if measured.exponent is not None), None),
        counted=exponent(
            [
                (measured.case.length, measured.flops)
                for measured in results
                if measured.state == "done" and measured.flops
            ]
        ),
        time=exponent(times),
        memory=exponent(memory),
        last_time=exponent(times[-2:]),
        last_memory=exponent(memory[-2:]),
        crossover=None
        if name == FUSED
        else crossover([(p.measured.case.length, 1 / p.speed_to_fused) for p in points if p.speed_to_fused]),
    )


def speed(first: Measured | None, second: Measured | None) -> float | None:
    """How many times faster the second one is."""
    if first is None or second is None or first.state != "done" or second.state != "done":
        return None
    return first.work / second.work


def _memory(one: Measured, other: Measured | None) -> float | None:
    return None if one.memory is None or other is None or not other.memory else one.memory / other.memory


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The power of the length that fits best: least squares of the logarithms."""
    lengths = [math.log(length) for length, _ in points]
    values = [math.log(value) for _, value in points]
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    variance = sum((length - mean) ** 2 for length in lengths)
    if not variance:
        return None
    return sum((length - mean) * value for length, value in zip(lengths, values)) / variance


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
