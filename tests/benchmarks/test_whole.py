"""Whole models beside their goals."""

from benchmarks.whole import GOALS, line, sizes
from longspan.arena.models.registry import ARENA_MODELS


def test_the_setting_is_the_one_that_the_goals_are_of() -> None:
    assert sizes() == {"layers": 4, "width": 256, "heads": 4, "hidden": 1024}


def test_every_goal_is_of_a_model_of_the_arena() -> None:
    assert GOALS.keys() <= ARENA_MODELS.keys()


def row(**values: object) -> dict[str, object]:
    figures = {"steps_per_second": 0.5, "memory": 2**20, "steps_per_second_to_naive": 7.0}
    return {"model": "linear", "state": "done", "error": None, **figures, "steps_per_second_to_fused": 5.0, **values}


def test_what_is_below_its_goal_is_short() -> None:
    assert line(row(), (8.0, 4.0)).endswith("8 /   4  short")
    assert line(row(), (7.0, 4.0)).endswith("7 /   4")


def test_what_did_not_fit_says_so() -> None:
    assert line(row(state="memory", error="too large"), (8.0, 4.0)).endswith("memory: too large")
