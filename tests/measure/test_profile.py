"""Fits, ratios and crossovers of made-up measurements, exactly."""

import json
from dataclasses import replace

import pytest
from tests.measure.made_up import GEMM, law, measured

from longspan.errors import InvalidOption, UnknownName
from longspan.measure.case import FUSED, NAIVE, Case, Measured
from longspan.measure.profile import Crossover, crossover, exponent, plan, profile, rows, speed
from longspan.measure.run_case import without_result

LENGTHS = (1024, 2048, 8192)


def test_the_exponent_of_a_power_is_that_power():
    for power in (0.0, 0.5, 1.0, 2.0, -1.0):
        assert exponent([(n, 3.7 * n**power) for n in LENGTHS]) == pytest.approx(power, abs=1e-12)
    assert exponent([]) is None and exponent([(1024, 1.0)]) is None and exponent([(8, 1.0), (8, 2.0)]) is None


def test_a_plan_holds_each_mechanism_against_both_dense_ones_and_begins_short():
    like = Case(mechanism="window", length=1, batch=2, padding=True, threads=2)
    cases = plan(("window", FUSED), (64, 32, 64), ("forward", "decode"), like)
    assert [(case.kind, case.length, case.mechanism) for case in cases] == [
        (kind, length, name)
        for kind in ("forward", "decode")
        for length in (32, 64)
        for name in (NAIVE, FUSED, "window")
    ]
    assert all((case.batch, case.padding, case.threads) == (2, True, 2) for case in cases)
    assert all(case.causal == (case.kind == "decode") for case in cases)


def test_a_plan_of_unknown_names_or_no_lengths_is_refused():
    with pytest.raises(UnknownName, match="did you mean 'window'"):
        plan(("windw",), (64,), ("forward",))
    for lengths in ((), (0,)):
        with pytest.raises(InvalidOption, match="at least 1"):
            plan(("window",), lengths, ("forward",))


def test_ratios_exponents_and_the_crossover_of_a_law():
    told: list[Measured] = []
    made = profile(plan(("linear",), LENGTHS, ("forward", "training")), law, told.append)
    assert len(told) == 2 * 3 * 3
    assert [(row.mechanism, row.kind) for row in made] == [
        (name, kind) for kind in ("forward", "training") for name in (NAIVE, FUSED, "linear")
    ]
    naive, fused, linear = made[:3]
    assert [row.declared for row in (naive, fused, linear)] == [2.0, 2.0, 1.0]
    assert [row.counted for row in (naive, fused, linear)] == pytest.approx([2.0, 2.0, 1.0])
    assert [row.time for row in (naive, fused, linear)] == pytest.approx([2.0, 2.0, 1.0])
    assert [row.memory for row in (naive, fused, linear)] == pytest.approx([2.0, 1.0, 1.0])
    assert linear.last_time == pytest.approx(1.0) and linear.last_memory == pytest.approx(1.0)
    for point in linear.points:
        n = point.measured.case.length
        assert point.speed_to_fused == pytest.approx(n / 4096) and point.speed_to_naive == pytest.approx(n / 2048)
        assert point.memory_to_fused == pytest.approx(1.0) and point.memory_to_naive == pytest.approx(128 / n)
        assert point.measured.spread == pytest.approx(0.5) and point.measured.share == pytest.approx(0.5)
    assert fused.crossover is None and naive.crossover == Crossover("never")
    assert linear.crossover is not None and linear.crossover.how == "between"
    assert linear.crossover.length == pytest.approx(4096)


def test_speeds_of_two_processes_are_in_units_of_the_machine_s_products():
    """A machine that was half as fast for the second one has changed nothing."""
    one, other = measured("sdpa", 64, 1.0, 1), measured("window", 64, 1.0, 1, gemm=GEMM / 2)
    assert speed(one, other) == 2.0 and speed(other, one) == 0.5
    assert speed(one, without_result(one.case, "slow", "")) is None and speed(None, one) is None


@pytest.mark.parametrize(
    ("ratios", "how", "length"),
    [
        ([0.9, 0.8, 0.1], "below", 1024.0),
        ([2.0, 0.5, 0.1], "between", 1024 * 2**0.5),
        ([0.5, 2.0, 0.5], "between", 2048 * 4**0.5),  # faster once, but it did not stay so
        ([8.0, 4.0, 1.0], "beyond", 8192.0),
        ([64.0, 32.0, 8.0], "beyond", 65536.0),
        ([2.0, 2.0, 2.0], "never", None),
        ([1.5, 2.0, 3.0], "never", None),
        ([1.20, 1.15, 1.10], "never", None),  # too little for more than noise
    ],
)
def test_the_crossover(ratios: list[float], how: str, length: float | None):
    found = crossover(list(zip(LENGTHS, ratios)))
    assert found.how == how
    assert found.length is None if length is None else found.length == pytest.approx(length)


def test_a_crossover_without_measurements_is_unknown():
    assert crossover([]) == Crossover("unknown") == crossover([(1024, 2.0)])
    assert crossover([(1024, 0.5)]) == Crossover("below", 1024)


def test_how_a_crossover_is_written():
    found = [Crossover("below", 256), Crossover("between", 5324.8), Crossover("beyond", 3 * 2**20), Crossover("never")]
    assert [str(each) for each in found] == ["≤256", "5.2K", "~3M", "never"]
    assert str(Crossover("unknown")) == "?"


def test_after_a_failure_longer_texts_are_not_tried():
    asked = []

    def measure(case: Case) -> Measured:
        asked.append((case.mechanism, case.length))
        stops = case.mechanism == NAIVE and case.length >= 2048
        return without_result(case, "memory", "too large") if stops else law(case)

    made = profile(plan(("linear",), LENGTHS, ("forward",)), measure)
    assert (NAIVE, 2048) in asked and (NAIVE, 8192) not in asked and (FUSED, 8192) in asked
    naive, _, linear = made
    assert [point.measured.state for point in naive.points] == ["done", "memory", "memory"]
    assert naive.points[2].measured.error == "too large" and naive.time is None
    assert [point.speed_to_naive is None for point in linear.points] == [False, True, True]


def test_a_row_is_ready_for_json():
    made = rows([law(Case(mechanism=name, length=n)) for n in LENGTHS for name in (NAIVE, FUSED, "linear")])
    failed = rows([replace(without_result(Case(mechanism="etc", length=8), "failed", "why"), exponent=1.0)])
    plain = json.loads(json.dumps([row.plain() for row in (*made, *failed)]))
    point = plain[2]["points"][0]
    assert point["case"]["length"] == 1024 and point["gemm_share"] == pytest.approx(0.5)
    assert point["seconds_least"] == pytest.approx(1e-8 * 4096 * 1024) and point["speed_to_fused"] == pytest.approx(
        0.25
    )
    assert plain[3]["points"][0]["error"] == "why" and plain[3]["time"] is None
