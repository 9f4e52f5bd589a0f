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
    new, found = set[str](), dict[str, CaseCost]()
    done = 0

    def noted(case: Case) -> Measured:
        tell(done, len(cases), f"{case.mechanism}, {case.length:,} tokens")
        new.add(case.key)
        return measure(case)

    kept = store.through(noted, refresh=refresh)
    for done, case in enumerate(cases):  # noqa: B007  # read by `noted`
        _sort(case.mechanism, measure_or_estimate(case, kept), found, unable)
    room = machine.available() if question.memory is None else question.memory
    close = _close(found, room, new)
    for turn in range(ROUNDS):
        for index, name in enumerate(close):
            tell(turn * len(close) + index, ROUNDS * len(close), f"{name} again, as {len(close)} are close")
            found[name] = _again(found[name], measure, store)
    return rank(question, found, unable, room, accuracy, keep_better=keep_better)


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
    began, done, found = clock(), 0, dict[str, CaseCost]()

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
        known = short.get(case.mechanism)
        if known is not None:
            _sort(case.mechanism, _from_short(case, known, kept), found, unable)
        done += 1
    room = machine.available() if question.memory is None else question.memory
    return rank(question, found, unable, room, accuracy, keep_better=keep_better)


def _from_short(case: Case, known: Measured, measure: Measure) -> CaseCost | str:
    """The cost of a case, from a short sequence and, if there is time, one of half its length."""
    if known.state != "done":
        return known.error or known.state
    if known.case.length == case.length:
        return measured(known)
    try:
        half = measure(shorter(case, known.case.length // 2))
    except _Unknown:
        return scaled_by_power(case, known)
    return extrapolated(case, half, known) if half.state == "done" else scaled_by_power(case, known)


def _sort(name: str, result: CaseCost | str, found: dict[str, CaseCost], unable: dict[str, str]) -> None:
    if isinstance(result, CaseCost):
        found[name] = result
    else:
        unable[name] = result


def rank(
    question: Requirements,
    found: Mapping[str, CaseCost],
    unable: Mapping[str, str],
    room: int | None,
    accuracy: Mapping[str, float] | None = None,
    *,
    keep_better: bool = True,
) -> Advice:
    """The advice that follows from the costs. `keep_better` keeps slower mechanisms with a better accuracy."""
    ruled_out = dict(unable)
    known = {} if accuracy is None else accuracy
    fitting = {name: each for name, each in found.items() if _fits(each, room)}
    for name in found.keys() - fitting.keys():
        ruled_out[name] = _too_large(found[name], room)
    exact, dense = found.get(EXACT), fitting.get(EXACT)
    least = min((each.seconds for each in fitting.values()), default=0.0)
    choices = []
    for name, each in fitting.items():
        choice = RankedChoice(
            mechanism=name,
            case=each.case,
            seconds=each.seconds,
            memory=each.memory,
            estimated_from=each.estimated_from,
            faster=None if exact is None else exact.seconds / each.seconds,
            exact_estimated=exact is not None and bool(exact.estimated_from),
            tied=each.seconds <= least * (1 + TIE),
            order=find(name).order,
            remarks=remarks(name),
            accuracy=known.get(name),
            behind=_behind(name, fitting, known),
        )
        better = keep_better and name in known and EXACT in known and known[name] > known[EXACT]
        if dense is None or each.seconds <= dense.seconds or choice.tied or better:
            choices.append(choice)
        else:
            ruled_out[name] = f"takes {each.seconds / dense.seconds:.1f} times as long as exact attention"
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
        known = {name: each for name, each in results.items() if isinstance(each, CaseCost)}
        advice = rank(requirements, known, unable, question.memory)
        if advice.choices:
            best[length] = advice.choices[0].mechanism
    return best


def remarks(name: str) -> tuple[str, ...]:
    """What a user of this mechanism should know, from what its class declares."""
    of = find(name)
    said = []
    if "q" not in of.projects:
        said.append("compares no queries with keys")
    elif "k" not in of.projects:
        said.append("one projection serves as queries and keys")
    made = [stream.name for stream in of.streams if stream.required]
    if made:
        said.append(f"reads {', '.join(made)} too, which MultiHead makes")
    said += [f"may read {stream.name}: {stream.help}" for stream in of.streams if stream.kind in ("mask", "ids")]
    if name in ALTERNATING:
        said.append("reads along one axis of a grid; the next layer has to read along the other")
    if not of.supports.map:
        said.append("changes the values as well, so that no one map shows what it reads")
    return tuple(said)


def _scaled(question: Requirements, length: int) -> int | None:
    return None if question.keys is None else max(1, question.keys * length // question.length)


class _Unknown(LongspanError):
    """A case has not been measured."""


def _only(store: Store) -> Measure:
    def known(case: Case) -> Measured:
        found = store.get(case)
        if found is None or found.state not in FOR_GOOD:
            raise _Unknown(case.key)
        return found

    return known


def _rank_key(choice: RankedChoice) -> tuple[bool, float, bool, float]:
    """Sort tied choices by exactness and memory, all others by time."""
    if choice.tied:
        return False, 0.0, choice.mechanism != EXACT, float(choice.memory or 0)
    return True, choice.seconds, False, 0.0


def _fits(each: CaseCost, room: int | None) -> bool:
    return room is None or each.memory is None or each.memory <= room


def _too_large(each: CaseCost, room: int | None) -> str:
    takes = "takes about" if each.estimated_from else "takes"
    return f"{takes} {(each.memory or 0) / 2**20:,.0f} MiB, but only {(room or 0) / 2**20:,.0f} are allowed"


def _behind(name: str, fitting: Mapping[str, CaseCost], accuracy: Mapping[str, float]) -> str | None:
    """The fastest mechanism that dominates this one: no slower, no less accurate, and better in one of the two."""
    if name not in accuracy:
        return None
    own = (-fitting[name].seconds, accuracy[name])
    others = {each: (-fitting[each].seconds, accuracy[each]) for each in fitting if each in accuracy}
    over = [each for each, (speed, right) in others.items() if speed >= own[0] and right >= own[1]]
    over = [each for each in over if others[each] != own]
    return min(over, key=lambda each: fitting[each].seconds, default=None)


def _close(found: Mapping[str, CaseCost], room: int | None, new: set[str]) -> list[str]:
    """The mechanisms that may turn out the fastest, among those measured just now."""
    fitting = {name: each for name, each in found.items() if _fits(each, room)}
    least = min((each.seconds for each in fitting.values()), default=0.0)
    close = [name for name, each in fitting.items() if each.seconds <= least * (1 + CLOSE)]
    measured = [name for name in close if not found[name].estimated_from and found[name].case.key in new]
    return measured if len(close) > 1 else []


def _again(each: CaseCost, measure: Measure, store: Store) -> CaseCost:
    (first,) = each.by
    second = measure(each.case)
    if second.state != "done":
        return each
    both = replace(first, seconds=(*first.seconds, *second.seconds))
    store.put(both)
    return replace(each, seconds=both.least, by=(both,))


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
