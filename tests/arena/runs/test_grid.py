"""The plan: which cells, in which order, with how much time."""

import pytest

from longspan.arena.runs.cell import Cell, Record
from longspan.arena.runs.grid import (
    START,
    Arguments,
    differences,
    duration,
    estimate,
    plan,
    spell,
    time_limit,
    total,
    wall,
)
from longspan.arena.settings import find
from longspan.errors import InvalidOption


def some(**values: object) -> Arguments:
    known = {"tasks": ("listops", "recall"), "models": ("dense", "window", "lstm"), "seeds": 2, "lengths": ()}
    return Arguments(**{**known, **values})


def test_seed_by_seed_and_speeds_after_the_first() -> None:
    cells = plan(some(lengths=(1024, 2048), timed=("dense", "window")))
    assert len(cells) == 2 * 3 * 2 + 2 * 2
    assert [cell.seed for cell in cells if cell.kind == "accuracy"] == [0] * 6 + [1] * 6
    assert [cell.kind for cell in cells] == ["accuracy"] * 6 + ["speed"] * 4 + ["accuracy"] * 6
    assert [(cell.task, cell.model) for cell in cells[:4]] == [
        ("listops", "dense"),
        ("listops", "window"),
        ("listops", "lstm"),
        ("recall", "dense"),
    ]
    assert [(cell.length, cell.model) for cell in cells[6:10]] == [
        (1024, "dense"),
        (1024, "window"),
        (2048, "dense"),
        (2048, "window"),
    ]
    assert len({cell.key for cell in cells}) == len(cells)
    assert {cell.seconds for cell in cells} == {None}


def test_pretraining_has_a_separate_column() -> None:
    cells = plan(some(pretrain=True, threads=2))
    assert len(cells) == 24 and sum(cell.pretrain for cell in cells) == 12
    assert {cell.threads for cell in cells} == {2} and len({cell.key for cell in cells}) == 24


def test_a_budget_is_divided_equally_and_kept() -> None:
    given = some(budget=1200.0, lengths=(1024, 2048), timed=("dense", "window"))
    cells = plan(given, workers=2)
    training = {cell.seconds for cell in cells if cell.kind == "accuracy"}
    timing = {cell.seconds for cell in cells if cell.kind == "speed"}
    assert len(training) == len(timing) == 1
    (seconds,) = training
    assert seconds == pytest.approx((960 / 6 - START) * 0.8, abs=0.06)
    assert total(cells, 2) == pytest.approx(1200, abs=1)
    many = plan(some(budget=120.0, lengths=(1024, 2048), timed=("dense", "window", "lstm")), workers=2)
    assert total(many, 2) == pytest.approx(120, abs=1)
    assert total(plan(some(budget=600.0), workers=1), 1) == pytest.approx(600, abs=1)
    assert all(time_limit(cell) > wall(cell.seconds) for cell in cells)


def test_a_task_may_have_a_larger_share_of_the_budget() -> None:
    shares = [find("tiny", task).share for task in ("listops", "text")]
    assert shares == [1.0, 4.0]
    cells = plan(some(budget=1200.0, tasks=("listops", "text")), workers=2)
    short, long = ({cell.seconds for cell in cells if cell.task == task} for task in ("listops", "text"))
    assert [len(short), len(long)] == [1, 1]
    assert wall(*long) == pytest.approx(4 * wall(*short), abs=0.2)
    assert total(cells, 2) == pytest.approx(1200, abs=1)
    assert len({cell.seconds for cell in plan(some(budget=1200.0, setting="small", tasks=("listops", "text")))}) == 1


def test_too_small_a_budget_names_the_least_one() -> None:
    with pytest.raises(InvalidOption, match=r"--budget 30s is too little for 12 cells on 2 workers: .* at least 39s"):
        plan(some(budget=30.0), workers=2)
    plan(some(budget=60.0), workers=2)
    with pytest.raises(InvalidOption, match="too little for 16 cells on 1 worker:"):
        plan(some(budget=60.0, lengths=(1024, 2048), timed=("dense", "window")))


def test_estimates_use_the_budget_or_earlier_records() -> None:
    cell = Cell(task="listops", model="dense", seed=1)
    earlier = [
        Record(cell=Cell(task="listops", model="dense"), state="done", seconds=8.0),
        Record(cell=Cell(task="listops", model="dense"), state="failed", seconds=800.0),
        Record(cell=Cell(task="recall", model="dense"), state="done", seconds=80.0),
    ]
    assert estimate(cell) is None and total([cell], 1) is None
    assert estimate(cell, earlier) == wall(8.0) == total([cell], 2, earlier)
    assert estimate(Cell(task="listops", model="dense", seconds=16.0), earlier) == wall(16.0)
    assert time_limit(cell) is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("20m", 1200), ("1h30m", 5400), ("1.5h", 5400), ("1H 5m 2s", 3902)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == seconds == duration(spell(seconds))


@pytest.mark.parametrize("text", ["", "20", "m", "20 minutes", "-5m", "1m1h", "1e3s", "inf", "²m"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"--budget must be a time such as 90s, 20m or 1h30m, not"):
        duration(text)


def test_spelling() -> None:
    assert [spell(x) for x in (2.5, 9.0, 59.6, 125, 3600, 5401)] == ["2.5s", "9s", "60s", "2m5s", "1h", "1h30m1s"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"seeds": 0}, "--seeds must be at least 1, not 0"),
        ({"threads": -1}, "--threads must be at least 1, not -1"),
        ({"budget": 0.0}, "--budget must be more than 0 seconds, not 0"),
        ({"budget": float("nan")}, "--budget must be more than 0 seconds, not nan"),
        ({"tasks": ()}, "--tasks is empty"),
        ({"lengths": (0, 5)}, "--lengths must be at least 1, not 0"),
    ],
)
def test_arguments_have_limits(values: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        some(**values)


def test_arguments_are_read_back_and_compared() -> None:
    given = some(budget=60.0)
    assert Arguments.read(given.plain()) == given and differences(given, given) == []
    assert differences(given, some(seeds=3, models=("dense",))) == [
        "models dense,window,lstm there, dense here",
        "seeds 2 there, 3 here",
        "budget 60.0 there, none here",
    ]
