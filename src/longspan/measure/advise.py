"""Rank the mechanisms for given requirements by their speed on this machine.

The fastest that fits comes first. Mechanisms within `TIE` of it are tied: exact attention comes first, then the one
with the least memory. Mechanisms slower than exact attention are ruled out, unless accuracies are given and theirs is
better.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from longspan.attention import find, names
from longspan.errors import LongspanError
from longspan.measure import machine
from longspan.measure.case import Case, Measured
from longspan.measure.extrapolate import (
    QUICK_LENGTH,
    CaseCost,
    extrapolated,
    measure_or_estimate,
    measured,
    scaled_by_power,
)
from longspan.measure.requirements import ALTERNATING, Requirements, candidates, shorter
from longspan.measure.store import FOR_GOOD, Measure, Store

EXACT = "softmax"
TIE = 0.05  # a choice may be a tenth behind the fastest: half of that is measurement noise
CLOSE = 0.25  # mechanisms within this of the fastest are measured again, in turns
ROUNDS = 2
QUICK_SECONDS = 40.0

Tell = Callable[[int, int, str], None]  # cases done, cases in total, the case measured now


@dataclass(frozen=True, kw_only=True)
class RankedChoice:
    """A mechanism that meets the requirements and fits, with its cost."""

    mechanism: str
    case: Case
    seconds: float  # of a call, or of a decoding step
    memory: int | None  # peak bytes of a call, or bytes of the decoding state
    estimated_from: tuple[int, ...]  # shorter lengths this was estimated from; empty if measured
    faster: float | None  # speed relative to exact attention
    exact_estimated: bool  # whether the time of exact attention is an estimate
    tied: bool  # with the fastest
    order: str
    remarks: tuple[str, ...]
    accuracy: float | None = None
    behind: str | None = None  # a mechanism that dominates it; None with an accuracy: on the Pareto front

    @property
    def per_token(self) -> float:
        """Seconds per token of the batch; a decoding step makes one token per sequence."""
        return self.seconds / (self.case.batch * (1 if self.case.kind == "decode" else self.case.length))


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The choices, best first, and why the other mechanisms were ruled out."""

    question: Requirements
    room: int | None  # bytes that a choice may take; None: unknown
    choices: tuple[RankedChoice, ...]
    ruled_out: Mapping[str, str]

    @property
    def front(self) -> list[RankedChoice]:
        """The Pareto front of speed and accuracy, fastest first; empty without accuracies."""
        front = [choice for choice in self.choices if choice.accuracy is not None and choice.behind is None]
        return sorted(front, key=lambda choice: choice.seconds)


def advise(
    question: Requirements,
    measure: Measure,
    store: Store,
    *,
    refresh: bool = False,
    accuracy: Mapping[str, float] | None = None,
    keep_better: bool = True,
    tell: Tell = lambda done, total, now: None,
) -> Advice:
    """Advice from stored measurements; cases that are not stored are measured now. `refresh` measures all again."""
    cases, unable = candidates(question)
    new, costs = set[str](), dict[str, CaseCost]()
    done = 0

    def noted(case: Case) -> Measured:
        tell(done, len(cases), f"{case.mechanism}, {case.length:,} tokens")
        new.add(case.key)
        return measure(case)

    kept = store.through(noted, refresh=refresh)
    for done, case in enumerate(cases):  # noqa: B007  # read by `noted`
        _sort(case.mechanism, measure_or_estimate(case, kept), costs, unable)
    room = machine.available() if question.memory is None else question.memory
    close = _close(costs, room, new)
    for turn in range(ROUNDS):
        for index, name in enumerate(close):
            tell(turn * len(close) + index, ROUNDS * len(close), f"{name} again, as {len(close)} are close")
            costs[name] = _again(costs[name], measure, store)
    return rank(question, costs, unable, room, accuracy, keep_better=keep_better)


def quick(
    question: Requirements,
    measure: Measure,
    store: Store,
    *,
    seconds: float = QUICK_SECONDS,
    refresh: bool = False,
    accuracy: Mapping[str, float] | None = None,
    keep_better: bool = True,
    tell: Tell = lambda done, total, now: None,
    clock: Callable[[], float] = time.monotonic,
) -> Advice:
    """Advice estimated from short sequences and the declared exponents; stops measuring after `seconds`.

    Use a separate `store`, since these measurements are shorter.
    """
    cases, unable = candidates(question)
    began, done, costs = clock(), 0, dict[str, CaseCost]()

    def noted(case: Case) -> Measured:
        if clock() - began > seconds:
            raise _Unknown(f"not measured within {seconds:g} s; ask without --quick")
        tell(done, 2 * len(cases), f"{case.mechanism}, {case.length:,} tokens")
        return measure(case)

    kept = store.through(noted, refresh=refresh)
    longest = min(question.length, QUICK_LENGTH)
    short: dict[str, Measured] = {}
    for case in cases:  # one length of every mechanism first, so that a slow machine covers all of them
        try:
            short[case.mechanism] = kept(shorter(case, longest))
        except _Unknown as error:
            unable[case.mechanism] = str(error)
        done += 1
    for case in cases:
        short_result = short.get(case.mechanism)
        if short_result is not None:
            _sort(case.mechanism, _from_short(case, short_result, kept), costs, unable)
        done += 1
    room = machine.available() if question.memory is None else question.memory
    return rank(question, costs, unable, room, accuracy, keep_better=keep_better)


def _from_short(case: Case, short: Measured, measure: Measure) -> CaseCost | str:
    """The cost of a case, from a short sequence and, if there is time, one of half its length."""
    if short.state != "done":
        return short.error or short.state
    if short.case.length == case.length:
        return measured(short)
    try:
        half = measure(shorter(case, short.case.length // 2))
    except _Unknown:
        return scaled_by_power(case, short)
    return extrapolated(case, half, short) if half.state == "done" else scaled_by_power(case, short)


def _sort(name: str, result: CaseCost | str, costs: dict[str, CaseCost], unable: dict[str, str]) -> None:
    if isinstance(result, CaseCost):
        costs[name] = result
    else:
        unable[name] = result


def rank(
    question: Requirements,
    costs: Mapping[str, CaseCost],
    unable: Mapping[str, str],
    room: int | None,
    accuracy: Mapping[str, float] | None = None,
    *,
    keep_better: bool = True,
) -> Advice:
    """The advice that follows from the costs. `keep_better` keeps slower mechanisms with a better accuracy."""
    ruled_out = dict(unable)
    accuracies = {} if accuracy is None else accuracy
    fitting = {name: cost for name, cost in costs.items() if _fits(cost, room)}
    for name in costs.keys() - fitting.keys():
        ruled_out[name] = _too_large(costs[name], room)
    exact, dense = costs.get(EXACT), fitting.get(EXACT)
    least = min((cost.seconds for cost in fitting.values()), default=0.0)
    choices = []
    for name, cost in fitting.items():
        choice = RankedChoice(
            mechanism=name,
            case=cost.case,
            seconds=cost.seconds,
            memory=cost.memory,
            estimated_from=cost.estimated_from,
            faster=None if exact is None else exact.seconds / cost.seconds,
            exact_estimated=exact is not None and bool(exact.estimated_from),
            tied=cost.seconds <= least * (1 + TIE),
            order=find(name).order,
            remarks=remarks(name),
            accuracy=accuracies.get(name),
            behind=_behind(name, fitting, accuracies),
        )
        better = keep_better and name in accuracies and EXACT in accuracies and accuracies[name] > accuracies[EXACT]
        if dense is None or cost.seconds <= dense.seconds or choice.tied or better:
            choices.append(choice)
        else:
            ruled_out[name] = f"takes {cost.seconds / dense.seconds:.1f} times as long as exact attention"
    order = {name: index for index, name in enumerate(names())}
    ordered = {name: ruled_out[name] for name in sorted(ruled_out, key=lambda name: order.get(name, len(order)))}
    return Advice(question=question, room=room, choices=tuple(sorted(choices, key=_rank_key)), ruled_out=ordered)


def elsewhere(question: Requirements, store: Store) -> dict[int, str]:
    """The best choice at other lengths with the same requirements, where everything is measured already."""
    best = {}
    for length in sorted({stored.case.length for stored in store.all()} - {question.length}):
        requirements = replace(question, length=length, keys=_scaled(question, length))
        try:
            cases, unable = candidates(requirements)
            results = {case.mechanism: measure_or_estimate(case, _only(store)) for case in cases}
        except _Unknown:
            continue
        known = {name: cost for name, cost in results.items() if isinstance(cost, CaseCost)}
        advice = rank(requirements, known, unable, question.memory)
        if advice.choices:
            best[length] = advice.choices[0].mechanism
    return best


def remarks(name: str) -> tuple[str, ...]:
    """What a user of this mechanism should know, from what its class declares."""
    mechanism = find(name)
    notes = []
    if "q" not in mechanism.projects:
        notes.append("compares no queries with keys")
    elif "k" not in mechanism.projects:
        notes.append("one projection serves as queries and keys")
    required = [stream.name for stream in mechanism.streams if stream.required]
    if required:
        notes.append(f"reads {', '.join(required)} too, which MultiHead makes")
    notes += [
        f"may read {stream.name}: {stream.help}" for stream in mechanism.streams if stream.kind in ("mask", "ids")
    ]
    if name in ALTERNATING:
        notes.append("reads along one axis of a grid; the next layer has to read along the other")
    if not mechanism.supports.map:
        notes.append("changes the values as well, so that no one map shows what it reads")
    return tuple(notes)


def _scaled(question: Requirements, length: int) -> int | None:
    return None if question.keys is None else max(1, question.keys * length // question.length)


class _Unknown(LongspanError):
    """A case has not been measured."""


def _only(store: Store) -> Measure:
    def read(case: Case) -> Measured:
        stored = store.get(case)
        if stored is None or stored.state not in FOR_GOOD:
            raise _Unknown(case.key)
        return stored

    return read


def _rank_key(choice: RankedChoice) -> tuple[bool, float, bool, float]:
    """Sort tied choices by exactness and memory, all others by time."""
    if choice.tied:
        return False, 0.0, choice.mechanism != EXACT, float(choice.memory or 0)
    return True, choice.seconds, False, 0.0


def _fits(cost: CaseCost, room: int | None) -> bool:
    return room is None or cost.memory is None or cost.memory <= room


def _too_large(cost: CaseCost, room: int | None) -> str:
    takes = "takes about" if cost.estimated_from else "takes"
    return f"{takes} {(cost.memory or 0) / 2**20:,.0f} MiB, but only {(room or 0) / 2**20:,.0f} are allowed"


def _behind(name: str, fitting: Mapping[str, CaseCost], accuracy: Mapping[str, float]) -> str | None:
    """The fastest mechanism that dominates this one: no slower, no less accurate, and better in one of the two."""
    if name not in accuracy:
        return None
    point = (-fitting[name].seconds, accuracy[name])
    others = {other: (-fitting[other].seconds, accuracy[other]) for other in fitting if other in accuracy}
    over = [other for other, (speed, right) in others.items() if speed >= point[0] and right >= point[1]]
    over = [other for other in over if others[other] != point]
    return min(over, key=lambda other: fitting[other].seconds, default=None)


def _close(costs: Mapping[str, CaseCost], room: int | None, new: set[str]) -> list[str]:
    """The mechanisms that may turn out the fastest, among those measured just now."""
    fitting = {name: cost for name, cost in costs.items() if _fits(cost, room)}
    least = min((cost.seconds for cost in fitting.values()), default=0.0)
    close = [name for name, cost in fitting.items() if cost.seconds <= least * (1 + CLOSE)]
    measured = [name for name in close if not costs[name].estimated_from and costs[name].case.key in new]
    return measured if len(close) > 1 else []


def _again(cost: CaseCost, measure: Measure, store: Store) -> CaseCost:
    (first,) = cost.by
    second = measure(cost.case)
    if second.state != "done":
        return cost
    both = replace(first, seconds=(*first.seconds, *second.seconds))
    store.put(both)
    return replace(cost, seconds=both.least, by=(both,))


__all__ = [
    "CLOSE",
    "EXACT",
    "ROUNDS",
    "TIE",
    "Advice",
    "RankedChoice",
    "advise",
    "elsewhere",
    "quick",
    "rank",
    "remarks",
]
