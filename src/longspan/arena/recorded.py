"""Recorded accuracies of the arena, for users without results of their own: published ones, and those of our runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from longspan.arena import published

DENSE = "dense"  # the model of exact attention, whose mechanism is `softmax`


@dataclass(frozen=True)
class Recorded:
    """Mean accuracies of models over tasks, from 0 to 1, and their source."""

    name: str
    source: str
    tasks: tuple[str, ...]
    accuracy: Mapping[str, float]  # by arena model


def _recorded(name: str, source: str, tasks: tuple[str, ...], percent: Mapping[str, Mapping[str, float]]) -> Recorded:
    """Leaves out models without an accuracy on every task."""
    complete = {model: values for model, values in percent.items() if all(task in values for task in tasks)}
    return Recorded(
        name, source, tasks, {model: fmean(values[task] for task in tasks) / 100 for model, values in complete.items()}
    )


def _published() -> Recorded:
    """The benchmark's table without Retrieval, whose published column measures nothing."""
    table = published.benchmark()
    tasks = tuple(task for task in published.FIVE if task not in table.never_compared)
    accuracies = {row.model: row.accuracies for row in table.rows if row.model is not None}
    return _recorded("published", "Tay et al. 2020, Long Range Arena, Table 1", tasks, accuracies)


def _own(name: str) -> Recorded:
    run = published.read_data("recorded.toml")[name]
    return _recorded(name, run["source"], tuple(run["accuracies"][DENSE]), run["accuracies"])


RECORDED = {recorded.name: recorded for recorded in (_published(), _own("tiny"))}

__all__ = ["DENSE", "RECORDED", "Recorded"]
