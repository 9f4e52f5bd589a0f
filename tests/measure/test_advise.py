"""What follows from measurements: the ranking, what is ruled out, what is extrapolated, and the front."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from longspan.attention import names
from longspan.errors import InvalidOption
from longspan.measure.advise import ROUNDS, Advice, advise, elsewhere, quick, rank, remarks
from longspan.measure.case import Case, Measured
from longspan.measure.extrapolate import CaseCost, extrapolated, measure_or_estimate
from longspan.measure.requirements import Requirements, candidates, shorter
from longspan.measure.store import Store

ROOM = 2**30
QUESTION = Requirements(length=2048, memory=ROOM)
MIB = 2**20


def done(case: Case, seconds: float, memory: int = MIB, exponent: float = 1.0) -> Measured:
    return Measured(case=case, state="done", seconds=(2 * seconds, seconds), memory=memory, exponent=exponent)


def known(question: Requirements, **found: tuple[float, int]) -> dict[str, CaseCost]:
    """Seconds and bytes, as though they had been measured."""
    cases = {name: question.case(name) for name in found}
    return {
        name: CaseCost(case=cases[name], seconds=each[0], memory=each[1], by=(done(cases[name], *each),))
        for name, each in found.items()
    }


class MadeUp:
    """In place of measuring: seconds by a mechanism's name, all others 1; and what it was asked for."""

    def __init__(
        self, seconds: dict[str, float] | None = None, answer: Callable[[Case], Measured | None] = lambda case: None
    ) -> None:
        self.seconds, self.answer = seconds or {}, answer
        self.asked: list[Case] = []

    def __call__(self, case: Case) -> Measured:
        self.asked.append(case)
        return self.answer(case) or done(case, self.seconds.get(case.mechanism, 1.0))


def ranked(advice: Advice) -> list[str]:
    return [choice.mechanism for choice in advice.choices]


# The ranking


def test_the_fastest_fitting_choice_is_first_and_slower_than_exact_is_ruled_out():
    found = known(QUESTION, softmax=(1.0, 1), window=(0.2, 1), linear=(0.1, 1), etc=(1.5, 1), nystrom=(0.05, ROOM + 1))
    advice = rank(QUESTION, found, {}, ROOM)
    assert ranked(advice) == ["linear", "window", "softmax"]
    assert [choice.faster for choice in advice.choices] == [10.0, 5.0, 1.0]
    assert advice.ruled_out == {
        "etc": "takes 1.5 times as long as exact attention",
        "nystrom": "takes 1,024 MiB, but only 1,024 are allowed",
    }


def test_exact_attention_is_preferred_if_it_is_as_fast():
    found = known(QUESTION, window=(0.96, 1), softmax=(1.0, 9), linear=(0.97, 2), bigbird=(1.2, 1))
    advice = rank(QUESTION, found, {}, ROOM)
    assert ranked(advice) == ["softmax", "window", "linear"]
    assert all(choice.tied for choice in advice.choices)


def test_those_that_tie_are_ordered_by_memory_and_others_by_time():
    found = known(QUESTION, window=(1.0, 9), linear=(1.04, 5), performer=(1.03, 7), nystrom=(1.2, 1), etc=(1.1, 1))
    advice = rank(QUESTION, found, {}, ROOM)
    assert ranked(advice) == ["linear", "performer", "window", "etc", "nystrom"]
    assert [choice.tied for choice in advice.choices] == [True, True, True, False, False]
    assert advice.choices[0].faster is None  # nothing is known of exact attention


def test_if_exact_attention_does_not_fit_slower_ones_are_choices():
    found = known(QUESTION, softmax=(0.5, ROOM + 1), window=(1.0, 1))
    advice = rank(QUESTION, found, {"etc": "has no causal form"}, ROOM)
    assert ranked(advice) == ["window"] and advice.choices[0].faster == 0.5
    assert list(advice.ruled_out) == ["softmax", "etc"]  # in the order of the registry
    assert ranked(rank(QUESTION, found, {}, None)) == ["softmax"]  # no limit is known


def test_time_for_each_token():
    question = Requirements(length=1000, batch=2)
    assert rank(question, known(question, linear=(1.0, 1)), {}, None).choices[0].per_token == 1 / 2000
    question = Requirements(length=1000, batch=2, decode=True)
    assert rank(question, known(question, linear=(1.0, 1)), {}, None).choices[0].per_token == 1 / 2


# Accuracy


def test_the_front_is_of_those_that_no_other_beats_in_both():
    found = known(QUESTION, softmax=(1.0, 1), window=(0.5, 1), linear=(0.25, 1), performer=(0.6, 1), etc=(0.3, 1))
    accuracy = {"softmax": 0.6, "window": 0.55, "linear": 0.4, "performer": 0.5}
    advice = rank(QUESTION, found, {}, ROOM, accuracy)
    assert ranked(advice) == ["linear", "etc", "window", "performer", "softmax"]
    assert [choice.mechanism for choice in advice.front] == ["linear", "window", "softmax"]
    behind = {choice.mechanism: choice.behind for choice in advice.choices}
    assert behind["performer"] == "window" and behind["etc"] is None
    assert advice.choices[1].accuracy is None


def test_slower_but_more_accurate_mechanisms_stay():
    found = known(QUESTION, softmax=(1.0, 1), window=(2.0, 1), etc=(2.0, 1))
    advice = rank(QUESTION, found, {}, ROOM, {"softmax": 0.5, "window": 0.6, "etc": 0.5})
    assert ranked(advice) == ["softmax", "window"] and "etc" in advice.ruled_out
    assert [choice.mechanism for choice in advice.front] == ["softmax", "window"]


def test_equals_in_both_are_both_on_the_front():
    found = known(QUESTION, window=(0.5, 1), linear=(0.5, 2))
    advice = rank(QUESTION, found, {}, ROOM, {"window": 0.5, "linear": 0.5})
    assert len(advice.front) == 2


# Who can do it


@pytest.mark.parametrize(
    ("asked", "reasons"),
    [
        ({"causal": True}, {"etc": "has no causal form", "linformer": "has no causal form"}),
        ({}, {"sparse": "is causal only", "retention": "is causal only"}),
        ({"decode": True}, {"nystrom": "has no causal form"}),
        ({"keys": 512}, {"window": "has no cross-attention", "sparse": "is causal only"}),
    ],
)
def test_who_cannot_is_ruled_out_with_the_reason(asked: dict[str, int], reasons: dict[str, str]):
    cases, unable = candidates(Requirements(length=1024, **asked))
    assert reasons.items() <= unable.items()
    assert {case.mechanism for case in cases} | set(unable) == set(names())
    assert "softmax" in {case.mechanism for case in cases}


def test_defaults_that_are_for_longer_texts_shrink():
    able, _ = candidates(Requirements(length=64))
    assert "etc" in {case.mechanism for case in able}


def test_a_question_is_checked():
    with pytest.raises(InvalidOption, match="length must be at least 1, not 0"):
        Requirements(length=0)
    with pytest.raises(InvalidOption, match="cross-attention cannot be causal or decoded"):
        Requirements(length=8, keys=8, causal=True)


def test_a_case_has_the_requirements():
    case = Requirements(length=8192, decode=True, batch=2, heads=4, head_dim=32, threads=3).case("routing")
    assert (case.kind, case.causal, case.batch, case.heads, case.head_dim, case.threads) == (
        "decode",
        True,
        2,
        4,
        32,
        3,
    )
    assert case.options == {"clusters": 64}
    assert Requirements(length=8, training=False).case("window").kind == "forward"
    assert Requirements(length=32768).case("reformer").options == {"buckets": (32, 32)}
    assert Requirements(length=2048).case("reformer").options == {"buckets": 64}


def test_remarks_are_those_that_the_mechanism_declares():
    assert remarks("softmax") == ()
    assert "one projection serves as queries and keys" in remarks("reformer")
    assert "compares no queries with keys" in remarks("synthesizer")
    assert any("global_mask" in line for line in remarks("longformer"))


# Estimates


def slow(longest: int, of: Callable[[int], float], exponent: float, memory: Callable[[int], int]) -> MadeUp:
    """Measurable up to a length, by a law."""

    def answer(case: Case) -> Measured:
        if case.length > longest:
            return Measured(case=case, state="slow", error="takes too long")
        return done(case, of(case.length), memory(case.length), exponent)

    return MadeUp(answer=answer)


@pytest.mark.parametrize(
    ("exponent", "law"),
    [
        (2.0, lambda n: 3e-9 * n**2),
        (2.0, lambda n: 1e-6 * n + 3e-9 * n**2),
        (1.0, lambda n: 1e-3 + 1e-6 * n),
        (1.5, lambda n: 1e-4 * n**0.5 + 1e-7 * n**1.5),
        (0.0, lambda n: 2e-3),
    ],
)
def test_a_law_of_the_declared_order_is_found_from_two_lengths(exponent: float, law: Callable[[int], float]):
    measure = slow(8192, law, exponent, lambda n: 4096 * n)
    case = Case(mechanism="softmax", length=65536, kind="training", keys=65536)
    found = measure_or_estimate(case, measure)
    assert isinstance(found, CaseCost) and found.estimated_from == (2048, 4096)
    assert found.seconds == pytest.approx(law(65536)) and found.memory == 4096 * 65536
    assert [each.length for each in measure.asked] == [65536, 16384, 4096, 2048]
    assert [each.keys for each in measure.asked] == [65536, 16384, 4096, 2048]


def test_noise_leads_to_overestimates():
    case = Case(mechanism="softmax", length=4096)
    one, two = (done(shorter(case, length), 1.0, exponent=2.0) for length in (512, 1024))
    assert extrapolated(case, one, two).seconds == 16.0
    one = done(shorter(case, 512), 0.01, exponent=2.0)
    assert extrapolated(case, one, two).seconds == 16.0


def test_memory_is_extrapolated_by_its_growth_and_at_least_linearly():
    case = Case(mechanism="softmax", length=4096)
    for memory, expected in (((10, 20), 80), ((10, 40), 640), ((10, 12), 48), ((0, 0), 0)):
        one, two = (done(shorter(case, n), 1.0, bytes_) for n, bytes_ in zip((512, 1024), memory))
        assert extrapolated(case, one, two).memory == expected
    state = replace(case, kind="decode")
    one, two = (done(shorter(state, n), 1.0, 10) for n in (512, 1024))
    assert extrapolated(state, one, two).memory == 10


def test_an_unknown_cost_has_a_reason():
    case = Case(mechanism="softmax", length=65536)
    failed = Measured(case=case, state="failed", error="RuntimeError: no")
    assert measure_or_estimate(case, MadeUp(answer=lambda case: failed)) == "RuntimeError: no"
    endless = MadeUp(answer=lambda case: Measured(case=case, state="memory", error="takes 9 GiB"))
    assert measure_or_estimate(case, endless) == "takes 9 GiB"
    assert [each.length for each in endless.asked] == [65536, 16384, 4096, 1024]


# All of it


def test_advice_measures_each_once_and_those_that_are_close_in_turns(tmp_path: Path):
    store = Store(tmp_path / "here.jsonl")
    measure, said = MadeUp({"linear": 0.1, "nystrom": 0.11, "window": 0.5}), list[tuple[int, int, str]]()
    advice = advise(QUESTION, measure, store, tell=lambda *each: said.append(each))
    asked = [case.mechanism for case in measure.asked]
    assert ranked(advice)[:3] == ["linear", "nystrom", "window"]
    assert asked[-2 * ROUNDS :] == ["nystrom", "linear"] * ROUNDS
    assert asked.count("window") == 1 and "sparse" not in asked
    assert len(Store(store.path).get(QUESTION.case("linear")).seconds) == 2 * (1 + ROUNDS)
    assert said[0] == (0, len(set(asked)), "softmax, 2,048 tokens")
    assert said[1][0] == 1 and said[-1] == (2 * ROUNDS - 1, 2 * ROUNDS, "linear again, as 2 are close")

    again = MadeUp()
    assert ranked(advise(QUESTION, again, Store(store.path))) == ranked(advice) and again.asked == []
    advise(QUESTION, again, Store(store.path), refresh=True)
    assert {case.mechanism for case in again.asked} == set(asked)


def test_a_second_turn_that_is_faster_counts_and_one_that_fails_does_not(tmp_path: Path):
    seen = list[str]()

    def answer(case: Case) -> Measured | None:
        seen.append(case.mechanism)
        times = seen.count(case.mechanism)
        if case.mechanism == "window":
            return done(case, 0.5 if times == 1 else 0.4)
        if case.mechanism == "linear":
            return done(case, 0.48) if times == 1 else Measured(case=case, state="failed", error="no")
        return None

    advice = advise(QUESTION, MadeUp(answer=answer), Store(tmp_path / "here.jsonl"))
    assert [(each.mechanism, each.seconds) for each in advice.choices[:2]] == [("window", 0.4), ("linear", 0.48)]


def test_failed_mechanisms_are_ruled_out_with_their_error(tmp_path: Path):
    def answer(case: Case) -> Measured | None:
        return Measured(case=case, state="failed", error="it broke") if case.mechanism == "window" else None

    advice = advise(QUESTION, MadeUp(answer=answer), Store(tmp_path / "here.jsonl"))
    assert advice.ruled_out["window"] == "it broke"


def test_the_best_choice_at_other_measured_lengths(tmp_path: Path):
    store = Store(tmp_path / "here.jsonl")
    advise(replace(QUESTION, length=1024), MadeUp({"softmax": 0.1}), store)
    advise(replace(QUESTION, length=4096), MadeUp({"linear": 0.1}), store)
    store.put(done(replace(QUESTION, length=8192).case("window"), 1.0))
    assert elsewhere(QUESTION, store) == {1024: "softmax", 4096: "linear"}
    assert elsewhere(replace(QUESTION, causal=True), store) == {}


# In under a minute


def test_a_quick_answer_measures_short_texts_alone_and_uses_the_power_of_the_length(tmp_path: Path):
    def answer(case: Case) -> Measured:
        power = 2.0 if case.mechanism == "softmax" else 1.0
        seconds = (1e-6 if case.mechanism == "linear" else 1e-5) * case.length**power
        return Measured(case=case, state="done", seconds=(seconds,), memory=case.length, exponent=power)

    question = replace(QUESTION, length=65536)
    measure, store = MadeUp(answer=answer), Store(tmp_path / "quick.jsonl")
    advice = quick(question, measure, store)
    assert {case.length for case in measure.asked} == {512, 1024}
    first = advice.choices[0]
    assert first.mechanism == "linear" and first.estimated_from == (512, 1024) and first.exact_estimated
    assert first.seconds == pytest.approx(1e-6 * 65536) and first.memory == 65536
    assert first.faster == pytest.approx(10 * 65536)
    again = MadeUp(answer=answer)
    assert ranked(quick(question, again, Store(store.path))) == ranked(advice) and again.asked == []


def test_a_quick_answer_stops_in_time(tmp_path: Path):
    question = replace(QUESTION, length=4096)
    cases, _ = candidates(question)
    now = iter(range(10**6))
    clock = lambda: float(next(now))  # noqa: E731  # a second passes with each measurement
    # With time for all at one length and for three at another: the others grow by their power alone.
    measure = MadeUp({"softmax": 10.0})
    advice = quick(question, measure, Store(tmp_path / "a.jsonl"), seconds=len(cases) + 3, clock=clock)
    assert [case.length for case in measure.asked] == [1024] * len(cases) + [512] * 3
    by = {choice.mechanism: choice.estimated_from for choice in advice.choices}
    assert by["softmax"] == (512, 1024) and by["linear"] == (1024,)
    # With time for four: the rest is said to be missing.
    now, measure = iter(range(10**6)), MadeUp({"softmax": 10.0})
    advice = quick(question, measure, Store(tmp_path / "b.jsonl"), seconds=4, clock=clock)
    assert len(measure.asked) == 4 and [each.estimated_from for each in advice.choices] == [(1024,)] * 4
    late = [reason for reason in advice.ruled_out.values() if reason == "not measured within 4 s; ask without --quick"]
    assert len(late) == len(cases) - 4


def test_mechanisms_for_images_are_optional():
    _, unable = candidates(QUESTION)
    assert unable["axial"] == unable["image_local"] == "is for images: --images includes it"
    cases, _ = candidates(replace(QUESTION, images=True))
    assert {"axial", "image_local"} <= {case.mechanism for case in cases}


def test_recorded_accuracies_do_not_keep_slower_mechanisms(tmp_path: Path):
    accuracy = {"softmax": 0.5, "bigbird": 0.6}
    found = {
        name: CaseCost(case=QUESTION.case(name), seconds=s, memory=1, by=())
        for name, s in (("softmax", 1.0), ("bigbird", 2.0))
    }
    assert ranked(rank(QUESTION, found, {}, None, accuracy)) == ["softmax", "bigbird"]
    assert ranked(rank(QUESTION, found, {}, None, accuracy, keep_better=False)) == ["softmax"]
