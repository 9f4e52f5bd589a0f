"""What a run has done so far, read from its files: metrics by step and time, sizes and speed; for tables and charts.

`metrics.jsonl` has the updates and evaluations; `sessions.jsonl` has a row for each time that the run was started, with
its wall time, energy and number of parameters. A run that is unfinished or damaged is read as far as it goes.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan import files
from longspan.data.json_lines import parse
from longspan.errors import InvalidInput, LongspanError
from longspan.hub.locate import checkpoints
from longspan.models.folder import WEIGHTS
from longspan.parsing import read_toml
from longspan.train.run import CHECKPOINTS, CONFIG, RESULT, Run

SESSIONS = "sessions.jsonl"
SMOOTHING = 0.9  # of the training loss: the weight of what came before
LARGEST_HEADER = 100_000_000  # bytes; safetensors' own limit


@dataclass(frozen=True)
class MetricPoint:
    """Metrics at a step, and the seconds that updates have taken by then."""

    step: int
    seconds: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class History:
    """One run; `notes` say what is missing or damaged."""

    folder: Path
    task: Mapping[str, Any]
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    losses: tuple[MetricPoint, ...]  # of updates
    evaluations: tuple[MetricPoint, ...]  # on held-out data
    final: Mapping[str, float]  # the last evaluation and, once it is written, the metrics of the final model
    finished: bool
    parameters: int | None
    speed: float | None  # targets per second
    energy: Mapping[str, Any] | None  # joules over all sessions, and how they are known
    notes: tuple[str, ...] = field(default=())

    @property
    def step(self) -> int:
        """The last logged step."""
        return max((points[-1].step for points in (self.losses, self.evaluations) if points), default=0)

    @property
    def seconds(self) -> float:
        """The time of all updates so far."""
        return self.losses[-1].seconds if self.losses else 0.0

    @property
    def targets(self) -> float | None:
        """How many targets were learned, from the speed and the time of updates."""
        return None if self.speed is None else self.speed * self.seconds

    @property
    def seed(self) -> int:
        seed = self.train.get("seed", 0)
        return seed if isinstance(seed, int) else 0


def read_history(folder: Path) -> History:
    """The history of a run; an error if the folder is not one."""
    if not folder.is_dir():
        wrong = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise InvalidInput(f"{wrong}; give the folder of a run")
    if not (folder / CONFIG).is_file():
        raise InvalidInput(f"{folder} is not a run: it has no {CONFIG}")
    recipe = read_toml(folder / CONFIG)
    run, notes = Run(folder), []
    rows, damaged = run.rows(), run.unread()
    if damaged:
        notes.append(f"{damaged} damaged line{'s' * (damaged > 1)} of its metrics left out")
    updates = [row for row in rows if isinstance(row.get("seconds"), (int, float)) and "step" in row]
    clock = _clock(updates)
    losses = tuple(_smoothed(updates, clock))
    evaluations = tuple(
        MetricPoint(row["step"], _at(clock, row["step"]), _numbers(row["held_out"]))
        for row in rows
        if isinstance(row.get("held_out"), dict) and "step" in row
    )
    final = dict(evaluations[-1].metrics) if evaluations else {}
    for row in rows:
        if isinstance(row.get("result"), dict):
            for metrics in row["result"].values():
                final |= _numbers(metrics) if isinstance(metrics, dict) else {}
    finished = (folder / RESULT).exists()
    if not finished:
        notes.append("not finished")
    if not evaluations:
        notes.append("no evaluation yet")
    sessions = list(_sessions(folder))
    spent = sum(float(row["seconds"]) for row in updates)
    tables = {name: value if isinstance(value := recipe.get(name), dict) else {} for name in ("task", "model", "train")}
    return History(
        folder,
        **tables,
        losses=losses,
        evaluations=evaluations,
        final=final,
        finished=finished,
        parameters=_parameters(folder, sessions, notes),
        speed=sum(float(row.get("count") or 0) for row in updates) / spent if spent > 0 else None,
        energy=_energy(sessions),
        notes=tuple(notes),
    )


def final_metrics(folder: Path) -> dict[str, float]:
    """The metrics of a run's last evaluation and of its final model."""
    return dict(read_history(folder).final)


def log_session(run: Run, row: Mapping[str, Any]) -> None:
    """Add a row for one start of a run: its wall time, energy and sizes."""
    path = run.folder / SESSIONS
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    files.write_text(path, before + json.dumps(row) + "\n")


def _sessions(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / SESSIONS
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            row = parse(line)
        except InvalidInput:
            continue
        if isinstance(row, dict):
            yield row


def _clock(updates: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """The time of updates up to each logged step; a step between two logged ones took as long as the later one."""
    clock, last, total = [], 0, 0.0
    for row in updates:
        total += float(row["seconds"]) * max(0, row["step"] - last)
        last = row["step"]
        clock.append((last, total))
    return clock


def _at(clock: list[tuple[int, float]], step: int) -> float:
    return next((seconds for logged, seconds in reversed(clock) if logged <= step), 0.0)


def _smoothed(updates: list[dict[str, Any]], clock: list[tuple[int, float]]) -> Iterator[MetricPoint]:
    """The training loss as a running mean, corrected for its start at 0 (as Adam's means are)."""
    mean, weight = 0.0, 0.0
    for row, (step, seconds) in zip(updates, clock):
        loss = row.get("loss")
        if not isinstance(loss, (int, float)) or not math.isfinite(loss):
            continue
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        weight = SMOOTHING * weight + 1 - SMOOTHING
        yield MetricPoint(step, seconds, {"loss": mean / weight})


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}


def _energy(sessions: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The sum over sessions; None if any of them is unknown, since a part is not the whole."""
    records = [row.get("energy") for row in sessions]
    if not records or any(not isinstance(record, dict) or record.get("joules") is None for record in records):
        return None
    known = [record for record in records if isinstance(record, dict)]
    ways = [str(record.get("by", "")).partition(":")[0] for record in known]
    return {"joules": sum(float(record["joules"]) for record in known), "by": " and ".join(dict.fromkeys(ways))}


def _parameters(folder: Path, sessions: list[dict[str, Any]], notes: list[str]) -> int | None:
    """As the run recorded it or, of older runs, the size of the tensors in its newest model file."""
    recorded = [row["parameters"] for row in sessions if isinstance(row.get("parameters"), int)]
    if recorded:
        return int(recorded[-1])
    newest = [path / "model" for path in checkpoints(folder / CHECKPOINTS)[:1]]
    for path in [folder / RESULT / WEIGHTS, *(path / WEIGHTS for path in newest)]:
        if path.is_file():
            count = stored_parameters(path)
            if count is None:
                notes.append(f"{path} cannot be read")
            return count
    return None


def stored_parameters(path: Path) -> int | None:
    """How many numbers a safetensors file holds; None if it is missing or damaged."""
    try:
        return _stored(path)
    except (LongspanError, OSError, ValueError, KeyError, TypeError):
        return None


def _stored(path: Path) -> int:
    """How many numbers a safetensors file holds, from its header."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > LARGEST_HEADER:
            raise ValueError("the header is too large")
        header = parse(file.read(size))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


__all__ = ["SESSIONS", "History", "MetricPoint", "final_metrics", "log_session", "read_history", "stored_parameters"]
