"""Which ratios count as worse than they were."""

from dataclasses import replace
from pathlib import Path

from benchmarks.history import Record, append, between, changes, name_machine, read, seen_again

ONE = Record(
    commit="a" * 40,
    dirty=False,
    date="2026-01-01T00:00:00+00:00",
    machine="a processor, 2 threads, torch 2",
    length=4096,
    times_faster={"window": [10.0, 8.0]},
)


def run(forward: float, backward: float) -> Record:
    return replace(ONE, times_faster={"window": [forward, backward]})


def test_a_loss_of_more_than_15_percent_is_told() -> None:
    (found,) = changes([ONE], run(8.4, 8.0))
    assert found.worse and (found.row, found.kind) == ("window", "forward")
    assert str(found) == "worse: window, forward: 10 -> 8.4 (-16%)"


def test_a_loss_of_15_percent_is_noise() -> None:
    assert changes([ONE], run(8.6, 6.9)) == []


def test_a_gain_is_told_and_is_not_worse() -> None:
    (found,) = changes([ONE], run(10.0, 10.0))
    assert not found.worse and found.kind == "with backward"


def test_one_odd_record_of_three_decides_nothing() -> None:
    assert changes([ONE, run(30.0, 24.0), ONE], ONE) == []


def test_only_the_last_three_count() -> None:
    assert changes([run(100.0, 80.0)] * 5 + [ONE] * 3, ONE) == []


def test_other_machines_and_lengths_say_nothing() -> None:
    others = [replace(run(100.0, 80.0), machine="another"), replace(run(100.0, 80.0), length=1024)]
    assert changes(others, ONE) == []


def test_a_row_that_is_new_has_nothing_to_be_held_against() -> None:
    assert changes([replace(ONE, times_faster={"linear": [20.0, 30.0]})], ONE) == []


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    assert read(file) == []
    append(ONE, file)
    append(run(9.0, 7.0), file)
    assert read(file) == [ONE, run(9.0, 7.0)]


def test_a_change_counts_if_it_is_seen_twice_in_the_same_direction() -> None:
    found = changes([ONE], run(5.0, 5.0))
    assert seen_again(found, changes([ONE], run(6.0, 8.0))) == [found[0]]  # what is told is the first measurement
    assert seen_again(found, changes([ONE], run(20.0, 8.0))) == []


def test_what_was_measured_twice_is_recorded_in_between() -> None:
    assert between({"window": [4.0, 9.0], "linear": [2.0, 3.0]}, {"window": [9.0, 4.0]}) == {
        "window": [6.0, 6.0],
        "linear": [2.0, 3.0],
    }


def test_a_machine_with_other_instructions_is_another_machine() -> None:
    found = {"processor": "a processor", "instructions": "AVX2", "torch_threads": 2, "torch": "2"}
    assert name_machine(found) == "a processor, AVX2, 2 threads, torch 2"
    assert name_machine({**found, "instructions": "AVX512"}) != name_machine(found)
