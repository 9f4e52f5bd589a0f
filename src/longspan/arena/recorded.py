"""Accuracies of the arena that are on record, for who has run none: the published ones, and a run of our own."""

from collections.abc import Mapping
from dataclasses import dataclass

from longspan.arena import published
from longspan.errors import UnknownName, suggest

DENSE = "dense"  # the model of exact attention, whose mechanism is `softmax`


@dataclass(frozen=True)
class Recorded:
    """Mean accuracies of models over tasks, as shares, and where they are from."""

    name: str
    source: str
    tasks: tuple[str, ...]
    accuracy: Mapping[str, float]  # by the arena's names of models


def _published() -> Recorded:
    """The benchmark's own table without Retrieval, whose printed column measures nothing."""
    table = published.ACCURACY
    tasks = tuple(task for task in published.FIVE if task not in table.never_compared)
    means = {}
    for row in table.rows:
        values = [row.accuracy(task) for task in tasks]
        known = [value for value in values if value is not None]
        if row.model is not None and len(known) == len(tasks):
            means[row.model] = sum(known) / len(known) / 100
    return Recorded("published", "Tay et al. 2020, Long Range Arena, Table 1", tasks, means)


# `make arena` (--seeds 1 --budget 16m), 2000 test examples a task: ListOps and Pathfinder, in percent.
_TINY = {
    "dense": (42.2, 68.5),
    "window": (40.2, 56.4),
    "routing": (39.5, 63.2),
    "linformer": (38.7, 69.0),
    "nystrom": (37.4, 67.4),
    "performer": (41.2, 67.0),
    "lstm": (38.9, 51.0),
}

RECORDED = {
    each.name: each
    for each in (
        _published(),
        Recorded(
            "tiny",
            "our own `make arena`, one seed, 2026-11-17, 2 cores of an AMD EPYC with AVX-512; 2 points are noise",
            ("listops", "pathfinder"),
            {model: sum(values) / len(values) / 100 for model, values in _TINY.items()},
        ),
    )
}


def find(name: str) -> Recorded:
    if name not in RECORDED:
        raise UnknownName(f"no figures are recorded as {name!r}: {suggest(name, RECORDED)}")
    return RECORDED[name]


__all__ = ["RECORDED", "Recorded", "find"]
