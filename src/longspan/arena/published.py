"""Published results of the arena with their sources, and every difference between the published protocol and ours.

The data is in `published.toml`; it is read once, when first needed.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from longspan.arena.tasks.registry import TASKS
from longspan.errors import UnknownName, suggest

SETTINGS = ("released", "released_sizes", "appendix", "small", "tiny")
FULL_SIZE = SETTINGS[:-1]  # settings whose results compare with published ones
FIVE = ("listops", "text", "retrieval", "image", "pathfinder")  # the tasks of the benchmark's average

TITLES = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder": "Pathfinder",
    "pathx": "Path-X",
    "recall": "Recall",
    "mqar": "MQAR",
    "selective_copy": "Selective copy",
    "parity": "Parity",
}


@dataclass(frozen=True)
class PublishedRow:
    """A row of a table of accuracies, in percent."""

    title: str  # as printed
    accuracies: Mapping[str, float]  # by task; without those that failed or were not reported
    average: float  # as printed
    averaged: int = 5  # number of tasks in the average: 6 with Path-X
    model: str | None = None  # our model that comes nearest
    note: str = ""

    def accuracy(self, task: str) -> float | None:
        return self.accuracies.get(task)

    def mean(self) -> float:
        """The average of this row, which is not always what is printed."""
        values = [self.accuracies[task] for task in (*FIVE, "pathx")[: self.averaged] if task in self.accuracies]
        return sum(values) / len(values)


@dataclass(frozen=True)
class PublishedTable:
    source: str
    rows: tuple[PublishedRow, ...]
    never_compared: tuple[str, ...] = ()  # tasks whose published column measures nothing

    def row(self, model: str) -> PublishedRow | None:
        return next((row for row in self.rows if row.model == model), None)


@dataclass(frozen=True)
class PublishedSpeed:
    """A row of the efficiency table: one value for each length."""

    title: str
    model: str
    steps_per_second: tuple[float, ...]
    gigabytes: tuple[float, ...]  # per device
    note: str = ""


@dataclass(frozen=True)
class PublishedSpeeds:
    source: str
    lengths: tuple[int, ...]
    rows: tuple[PublishedSpeed, ...]


@dataclass(frozen=True)
class Difference:
    """A difference in protocol; empty `settings` or `tasks` mean all of them."""

    text: str
    settings: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()

    def concerns(self, setting: str, tasks: set[str]) -> bool:
        return (not self.settings or setting in self.settings) and (not self.tasks or bool(tasks & set(self.tasks)))


def benchmark() -> PublishedTable:
    """The benchmark's own accuracies (Tay et al. 2020, Table 1)."""
    return _accuracies("benchmark")


def small() -> PublishedTable:
    """The small protocol of Xiong et al. 2021 (Nyströmformer)."""
    return _accuracies("small")


def later() -> PublishedTable:
    """Later results, with other rules and larger budgets."""
    return _accuracies("later")


def table(setting: str) -> PublishedTable:
    """The published accuracies whose protocol is nearest to a setting's."""
    return small() if setting == "small" else benchmark()


@cache
def speeds() -> PublishedSpeeds:
    """The benchmark's efficiency table (Tay et al. 2020, Table 2)."""
    values = read_data("published.toml")["speed"]
    return PublishedSpeeds(**{**_tuples(values), "rows": tuple(PublishedSpeed(**_tuples(r)) for r in values["rows"])})


def differences(setting: str, tasks: Iterable[str] = ()) -> list[str]:
    """Every difference between a setting's protocol and the published one, for these tasks or for all."""
    if setting not in SETTINGS:
        raise UnknownName(f"no setting of the arena is called {setting!r}: {suggest(setting, SETTINGS)}")
    wanted = set(tasks) or set(TASKS)
    for name in sorted(wanted - set(TASKS)):
        raise UnknownName(f"no task of the arena is called {name!r}: {suggest(name, TASKS)}")
    return [difference.text for difference in _differences() if difference.concerns(setting, wanted)]


def comparable(setting: str, task: str) -> bool:
    """Whether our accuracy may be compared with the published one."""
    return setting in FULL_SIZE and task in FIVE and task not in table(setting).never_compared


@cache
def read_data(name: str) -> dict[str, Any]:
    """A TOML file of this package."""
    return tomllib.loads(files("longspan.arena").joinpath(name).read_text(encoding="utf-8"))


@cache
def _accuracies(name: str) -> PublishedTable:
    values = read_data("published.toml")[name]
    return PublishedTable(**{**_tuples(values), "rows": tuple(PublishedRow(**row) for row in values["rows"])})


@cache
def _differences() -> tuple[Difference, ...]:
    values = [_tuples(entry) for entry in read_data("published.toml")["differences"]]
    return tuple(Difference(**{**entry, "text": " ".join(entry["text"].split())}) for entry in values)


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


__all__ = [
    "FIVE",
    "SETTINGS",
    "TITLES",
    "Difference",
    "PublishedRow",
    "PublishedSpeed",
    "PublishedSpeeds",
    "PublishedTable",
    "benchmark",
    "comparable",
    "differences",
    "later",
    "read_data",
    "small",
    "speeds",
    "table",
]
