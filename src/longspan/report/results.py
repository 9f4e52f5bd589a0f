"""The results of a grid, read from its folder: scores by task and model, speeds by length."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from longspan.arena.runs.cell import Record
from longspan.arena.runs.efficiency import FUSED, conditions
from longspan.arena.runs.results import latest, read_records
from longspan.arena.tasks.registry import TASKS
from longspan.data.json_lines import parse
from longspan.errors import InvalidInput
from longspan.report.palette import KINDS, kind
from longspan.report.statistics import Score, score


@dataclass(frozen=True)
class Relative:
    """A model's speed and memory, and their ratios to the dense model."""

    model: str
    steps_per_second: float | None
    memory: float | None
    speed_ratio: float | None
    memory_ratio: float | None
    by: str  # what was measured


@dataclass(frozen=True)
class Results:
    """The records of a folder; the last record of a cell counts."""

    records: Sequence[Record]
    grid: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()  # problems while reading

    @cached_property
    def accuracy_records(self) -> list[Record]:
        return [record for record in self.records if record.cell.kind == "accuracy"]

    @cached_property
    def speed_records(self) -> list[Record]:
        return [record for record in self.records if record.cell.kind == "speed"]

    @cached_property
    def settings(self) -> list[str]:
        return _unique(record.cell.setting for record in self.records)

    @cached_property
    def tasks(self) -> list[str]:
        """Tasks of the accuracy cells, in the benchmark's order."""
        names = _unique(record.cell.task for record in self.accuracy_records)
        return sorted(names, key=lambda name: list(TASKS).index(name) if name in TASKS else len(TASKS))

    @cached_property
    def models(self) -> list[str]:
        """Models of all cells: dense ones first, then by kind and name."""
        names = _unique(record.cell.model for record in self.records)
        return sorted(names, key=lambda name: (list(KINDS).index(kind(name)), name != FUSED, name))

    @cached_property
    def pretrained(self) -> bool:
        return any(record.cell.pretrain for record in self.accuracy_records)

    def cells(self, task: str, model: str, pretrain: bool = False) -> list[Record]:
        wanted = (task, model, pretrain)
        return [r for r in self.accuracy_records if (r.cell.task, r.cell.model, r.cell.pretrain) == wanted]

    def score(self, task: str, model: str, pretrain: bool = False) -> Score | None:
        """Over all seeds that are done."""
        done = [record for record in self.cells(task, model, pretrain) if record.state == "done"]
        values = [record.accuracy for record in done if record.accuracy is not None]
        counts = [record.test_count for record in done if record.test_count]
        return score(values, min(counts) if counts else None) if values else None

    def baselines(self, task: str) -> dict[str, float]:
        """Accuracies of trivial predictors on the same test set; the mean if seeds had different test sets."""
        accuracies: dict[str, list[float]] = {}
        for record in self.accuracy_records:
            if record.cell.task == task:
                for name, value in record.baselines.items():
                    accuracies.setdefault(name, []).append(value)
        return {name: fmean(values) for name, values in accuracies.items()}

    def state_bytes(self, task: str, model: str) -> int | None:
        """What a model carries on of a text of the task, if it was recorded."""
        return next((r.state_bytes for r in self.cells(task, model) if r.state == "done" and r.state_bytes), None)

    def groups(self, task: str, model: str) -> dict[str, float]:
        """Accuracies of the parts of the test, as means over seeds."""
        done = [record.groups for record in self.cells(task, model) if record.state == "done" and record.groups]
        names = [name for name in done[0] if all(name in groups for groups in done)] if done else []
        return {name: fmean(groups[name] for groups in done) for name in names}

    @cached_property
    def averaged(self) -> list[str]:
        """The tasks of the average: all that have a result, without Path-X unless it is alone, as in the benchmark."""
        tasks = [task for task in self.tasks if any(self.score(task, model) for model in self.models)]
        tasks = tasks or [task for task in self.tasks if any(self.score(task, model, True) for model in self.models)]
        return [task for task in tasks if task != "pathx"] or tasks

    def average(self, model: str, pretrain: bool = False) -> float | None:
        """The mean over `averaged`; None if a task is missing, since means over different tasks do not compare."""
        scores = [self.score(task, model, pretrain) for task in self.averaged]
        means = [score.mean for score in scores if score is not None]
        return fmean(means) if means and len(means) == len(scores) else None

    @cached_property
    def lengths(self) -> list[int]:
        return sorted({r.cell.length for r in self.speed_records if r.cell.length is not None})

    def speed(self, model: str, length: int) -> Record | None:
        """The speed cell of a model and length, in whatever state."""
        return next((r for r in self.speed_records if (r.cell.model, r.cell.length) == (model, length)), None)

    @cached_property
    def relatives(self) -> list[Relative]:
        """Every model at the longest length at which the dense model was timed; without such, during training."""
        timed = [length for length in self.lengths if _rate(self.speed(FUSED, length))]
        if timed:
            length = timed[-1]
            by = f"a training step at length {length:,}, relative to the dense Transformer with its fused kernel"
            return [_relative(m, self.speed(m, length), self.speed(FUSED, length), by) for m in self.models]
        base = FUSED if FUSED in self.models else None
        relatives = []
        for model in self.models:
            pairs = [(self._trained(task, model), self._trained(task, base) if base else None) for task in self.tasks]
            by_task = [_relative(model, one, other, "") for one, other in pairs if one is not None]
            by = "training" + (", relative to the dense Transformer (geometric mean over tasks)" if base else "")
            relatives.append(
                Relative(
                    model,
                    _geometric_mean([relative.steps_per_second for relative in by_task]),
                    _geometric_mean([relative.memory for relative in by_task]),
                    _geometric_mean([relative.speed_ratio for relative in by_task]),
                    _geometric_mean([relative.memory_ratio for relative in by_task]),
                    by,
                )
            )
        return relatives

    def _trained(self, task: str, model: str) -> Record | None:
        return next((r for r in self.cells(task, model) if r.state == "done" and r.steps_per_second), None)


def _relative(model: str, one: Record | None, other: Record | None, by: str) -> Relative:
    def ratio(a: float | None, b: float | None) -> float | None:
        return a / b if a and b else None

    if one is not None and other is not None and conditions(one) != conditions(other):
        other = None
    rate, memory = _rate(one), one.memory if one is not None and one.state == "done" else None
    return Relative(
        model, rate, memory, ratio(rate, _rate(other)), ratio(memory, other.memory if other is not None else None), by
    )


def _rate(record: Record | None) -> float | None:
    return record.steps_per_second if record is not None and record.state == "done" else None


def _geometric_mean(values: Sequence[float | None]) -> float | None:
    """None if a value is missing or 0."""
    known = [value for value in values if value]
    return exp(fmean(log(value) for value in known)) if known and len(known) == len(values) else None


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def read(folder: Path) -> Results:
    """The results of a folder that `longspan arena --out` wrote."""
    path = folder / "results.jsonl"
    if not path.is_file():
        raise InvalidInput(f"{path} is missing: expected a folder that `longspan arena --out` wrote")
    lines = read_records(path)
    if not lines.records:
        unusable = f" ({'; '.join(lines.notes)})" if lines.notes else ""
        raise InvalidInput(f"{path} has no records{unusable}: run `longspan arena --out {folder}` first")
    return Results(list(latest(lines.records).values()), _grid(folder / "grid.json"), lines.notes)


def _grid(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        grid = parse(path.read_bytes())
    except (OSError, InvalidInput) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(
            f"{path} cannot be read, {reason}: remove it, and `longspan arena` writes a new one"
        ) from None
    return grid if isinstance(grid, dict) else {}
