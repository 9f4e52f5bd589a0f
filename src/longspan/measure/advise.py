"""Which mechanism to use for one attention, from measurements of that very attention on this machine.

The fastest that fits comes first. What is as fast within `TIE` ties with it: of those the exact one comes first, then
the one that takes the least memory. What is slower than exact attention is ruled out, as nothing speaks for it, unless
accuracies are given and its own is better.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from longspan.attention import find, names
from longspan.errors import LongspanError
from longspan.measure import machine
from longspan.measure.case import Case, Measured
from longspan.measure.extrapolate import QUICK_LENGTH, Taken, foretold, measured, scaled, taken
from longspan.measure.requirements import ALTERNATING, Requirements, candidates, shorter
from longspan.measure.store import FOR_GOOD, Measure, Store

EXACT = "softmax"
TIE = 0.05  # half of the tenth that a choice may be behind the fastest: the other half is the noise of measuring
CLOSE = 0.25  # what is behind the fastest by no more than this is measured again, all of them taking turns
ROUNDS = 2
QUICK_SECONDS = 40.0

Tell = Callable[[int, int, str], None]  # how many are done, of how many, and what is measured now


@dataclass(frozen=True, kw_only=True)
class RankedChoice:
    """A mechanism that does what is asked and fits, and what it costs."""

    mechanism: str
    case: Case
    seconds: float  # of a call; when decoding, of a step
    memory: int | None  # bytes at the peak of a call; when decoding, of its state
    foretold: tuple[int, ...]  # the shorter lengths that this is known from; none where it was measured
    faster: float | None  # times as fast as exact attention
    exact_foretold: bool  # whether the time of exact attention is an estimate
    tied: bool  # as fast as the fastest
    order: str
    remarks: tuple[str, ...]
    accuracy: float | None = None
    behind: str | None = None  # who is both faster and more accurate; with an accuracy and without this: on the front

    @property
    def per_token(self) -> float:
        """Seconds for each token of the batch; when decoding, a step makes one token of each text."""
        return self.seconds / (self.case.batch * (1 if self.case.kind == "decode" else self.case.length))


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The choices, the best first, and why it is none of the others."""

    question: Requirements
    room: int | None  # bytes that a choice may take; None where neither the question nor the machine says
    choices: tuple[RankedChoice, ...]
    ruled_out: Mapping[str, str]

    @property
    def front(self) -> list[RankedChoice]:
        """Those of which no other is both faster and more accurate, the fastest first; empty without accuracies."""
        known = [each for each in self.choices if each.accuracy is not None and each.behind is None]
        return sorted(known, key=lambda each: each.seconds)


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
    """Advice from what the store knows and, where it knows nothing, from measuring now; `refresh` measures again."""
    cases, unable = candidates(question)
    new, found = set[str](), dict[str, Taken]()
    done = 0

    def noted(case: Case) -> Measured:
        tell(done, len(cases), f"{case.mechanism}, {case.length:,} tokens")
        new.add(case.key)
        return measure(case)

    kept = store.through(noted, refresh=refresh)
    for done, case in enumerate(cases):  # noqa: B007  # read by `noted`
        _sort(case.mechanism, taken(case, kept), found, unable)
    room = machine.available() if question.memory is None else question.memory
    close = _close(found, room, new)
    for turn in range(ROUNDS):
        for place, name in enumerate(close):
            tell(turn * len(close) + place, ROUNDS * len(close), f"{name} again, as {len(close)} are close")
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
    """Advice from short texts and the declared powers of the length; after so many seconds nothing more is measured.

    `store` should be one for such answers alone, as their measurements are shorter.
    """
    cases, unable = candidates(question)
    began, done, found = clock(), 0, dict[str, Taken]()

    def noted(case: Case) -> Measured:
        if clock() - began > seconds:
            raise _Unknown(f"not measured within {seconds:g} s; ask without --quick")
        tell(done, 2 * len(cases), f"{case.mechanism}, {case.length:,} tokens")
        return measure(case)

    kept = store.through(noted, refresh=refresh)
    longest = min(question.length, QUICK_LENGTH)
    short: dict[str, Measured] = {}
    for case in cases:  # one length of each before another of any, so that nothing is left out on a slow machine
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


def _from_short(case: Case, known: Measured, measure: Measure) -> Taken | str:
    """What a case takes by a short text, and by one of half its length where there is time for it."""
    if known.state != "done":
        return known.error or known.state
    if known.case.length == case.length:
        return measured(known)
    try:
        half = measure(shorter(case, known.case.length // 2))
    except _Unknown:
        return scaled(case, known)
    return foretold(case, half, known) if half.state == "done" else scaled(case, known)


def _sort(name: str, result: Taken | str, found: dict[str, Taken], unable: dict[str, str]) -> None:
    if isinstance(result, Taken):
        found[name] = result
    else:
        unable[name] = result


def rank(
    question: Requirements,
    found: Mapping[str, Taken],
    unable: Mapping[str, str],
    room: int | None,
    accuracy: Mapping[str, float] | None = None,
    *,
    keep_better: bool = True,
) -> Advice:
    """What follows from what each of them takes; `keep_better` keeps what is slower than exact attention and better."""
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
            foretold=each.foretold,
            faster=None if exact is None else exact.seconds / each.seconds,
            exact_foretold=exact is not None and bool(exact.foretold),
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
    places = {name: place for place, name in enumerate(names())}
    ordered = {name: ruled_out[name] for name in sorted(ruled_out, key=lambda name: places.get(name, len(places)))}
    return Advice(question=question, room=room, choices=tuple(sorted(choices, key=_place)), ruled_out=ordered)


def elsewhere(question: Requirements, store: Store) -> dict[int, str]:
    """What is chosen at other lengths of the same question, where all is measured already."""
    found = {}
    for length in sorted({each.case.length for each in store.all()} - {question.length}):
        asked = replace(question, length=length, keys=_scaled(question, length))
        try:
            cases, unable = candidates(asked)
            results = {case.mechanism: taken(case, _only(store)) for case in cases}
        except _Unknown:
            continue
        known = {name: each for name, each in results.items() if isinstance(each, Taken)}
        advice = rank(asked, known, unable, question.memory)
        if advice.choices:
            found[length] = advice.choices[0].mechanism
    return found


def remarks(name: str) -> tuple[str, ...]:
    """What a user of this mechanism has to know, as far as the mechanism itself declares it."""
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
    """Nothing is known of a case."""


def _only(store: Store) -> Measure:
    def known(case: Case) -> Measured:
        found = store.get(case)
        if found is None or found.state not in FOR_GOOD:
            raise _Unknown(case.key)
        return found

    return known


def _place(choice: RankedChoice) -> tuple[bool, float, bool, float]:
    """Those that tie by exactness and memory, all others by time."""
    if choice.tied:
        return False, 0.0, choice.mechanism != EXACT, float(choice.memory or 0)
    return True, choice.seconds, False, 0.0


def _fits(each: Taken, room: int | None) -> bool:
    return room is None or each.memory is None or each.memory <= room


def _too_large(each: Taken, room: int | None) -> str:
    takes = "takes about" if each.foretold else "takes"
    return f"{takes} {(each.memory or 0) / 2**20:,.0f} MiB, and {(room or 0) / 2**20:,.0f} are allowed"


def _behind(name: str, fitting: Mapping[str, Taken], accuracy: Mapping[str, float]) -> str | None:
    """The fastest of those that are no slower and no less accurate, and one of the two better."""
    if name not in accuracy:
        return None
    own = (-fitting[name].seconds, accuracy[name])
    others = {each: (-fitting[each].seconds, accuracy[each]) for each in fitting if each in accuracy}
    over = [each for each, (speed, right) in others.items() if speed >= own[0] and right >= own[1]]
    over = [each for each in over if others[each] != own]
    return min(over, key=lambda each: fitting[each].seconds, default=None)


def _close(found: Mapping[str, Taken], room: int | None, new: set[str]) -> list[str]:
    """Those that could turn out the fastest; what was kept from before has had its turns."""
    fitting = {name: each for name, each in found.items() if _fits(each, room)}
    least = min((each.seconds for each in fitting.values()), default=0.0)
    close = [name for name, each in fitting.items() if each.seconds <= least * (1 + CLOSE)]
    measured = [name for name in close if not found[name].foretold and found[name].case.key in new]
    return measured if len(close) > 1 else []


def _again(each: Taken, measure: Measure, store: Store) -> Taken:
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
