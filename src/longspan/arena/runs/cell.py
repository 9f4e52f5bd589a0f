"""A cell of the grid (one task, model, setting and seed), and the record of its result."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from longspan.data.json_lines import fields_of
from longspan.errors import InvalidInput

KINDS = ("accuracy", "speed")
MOST, TINIEST = 1e15, 1e-9  # a record with a nonzero number outside of these is damaged


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What to run; enough to repeat it."""

    kind: str = "accuracy"  # or "speed": steps per second and memory at one length
    task: str  # an arena task
    model: str  # an arena model: a mechanism, "dense", or a recurrent network
    setting: str = "tiny"
    seed: int = 0
    pretrain: bool = False  # spend part of the budget on predicting the task's own inputs first
    steps: int | None = None  # updates; by default those of the setting
    seconds: float | None = None  # of training; the number of steps follows from the time of the first ones
    length: int | None = None  # of a speed cell
    threads: int = 1

    @property
    def key(self) -> str:
        """The name of its folder and of its record."""
        parts = [self.kind, self.setting, self.task, self.model]
        parts += [f"length{self.length}"] if self.length is not None else [f"seed{self.seed}"]
        return "-".join(parts + ["pretrained"] * self.pretrain)

    @classmethod
    def read(cls, values: Any) -> "Cell":
        """A cell from JSON; raises InvalidInput."""
        cell = cls(**fields_of(cls, values, "a cell"))
        _check_range({"seed": cell.seed, "steps": cell.steps, "seconds": cell.seconds}, 0, "a cell")
        _check_range({"length": cell.length, "threads": cell.threads}, 1, "a cell")
        return cell

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One line of results.jsonl."""

    cell: Cell
    state: str  # "done", "failed" (an exception, or a process that died), "memory" (out of memory), "stopped"
    error: str | None = None  # one line, if it failed
    accuracy: float | None = None  # test accuracy at the step with the best held-out accuracy
    held_out: float | None = None  # the held-out accuracy of that step
    test_count: int | None = None  # test examples, for the standard error
    best_step: int | None = None
    steps: int | None = None
    seconds: float | None = None  # of training, without evaluation
    steps_per_second: float | None = None
    memory: int | None = None  # bytes at the peak, above what the process used before
    memory_by: str | None = None  # "allocator" (CUDA), or "resident" (the process's peak resident size)
    parameters: int | None = None
    parameters_ratio: float | None = None  # to the base Transformer of the setting
    flagged: str | None = None  # why it may not be compared, such as more than 1.1 times the base's parameters
    baselines: Mapping[str, float] = field(
        default_factory=dict
    )  # accuracies of trivial predictors on the same test set
    groups: Mapping[str, float] = field(default_factory=dict)  # accuracies of parts of the test, in their order
    grouped_by: str | None = None  # what separates these parts
    state_bytes: int | None = None  # what the causal form keeps of a text of the test's length (models.state_size)
    curve: tuple[Mapping[str, float], ...] = ()  # {"step", "seconds", "loss", "held_out"} at each evaluation
    data: Mapping[str, Any] = field(default_factory=dict)  # Splits.notes: hashes, sizes, label shares, stand-ins
    options: Mapping[str, Any] = field(default_factory=dict)  # all of the model and of training, resolved
    machine: Mapping[str, Any] = field(default_factory=dict)  # processor, cores, threads, memory, versions
    energy: Mapping[str, Any] = field(default_factory=dict)  # {"joules": …, "by": "RAPL" or "modelled: …"}
    began: str | None = None  # ISO 8601, UTC

    @classmethod
    def read(cls, values: Any) -> "Record":
        """A record from JSON; raises InvalidInput."""
        if isinstance(values, Mapping) and "cell" in values:
            values = {**values, "cell": Cell.read(values["cell"])}
        record = cls(**fields_of(cls, values, "a record"))
        _check_shares({"accuracy": record.accuracy, "held_out": record.held_out}, may_lack=True)
        _check_shares({**record.baselines}, may_lack=False)
        _check_shares({**record.groups}, may_lack=False)
        sizes = ("test_count", "best_step", "steps", "seconds", "steps_per_second", "memory", "parameters")
        names = (*sizes, "parameters_ratio", "state_bytes")
        _check_range({name: getattr(record, name) for name in names}, 0, "a record")
        return record

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def out_of_memory_at(cell: Cell, size: Mapping[str, float]) -> str:
    """The error message; `size` has the length and the batch, if the cell reported them before."""
    where = f" at length {size['length']} with batch {size['batch']}" if size else " before its sizes were known"
    return f"out of memory: {cell.model}{where}"


def finite(value: Any) -> Any:
    """The value with None for infinity and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_shares(values: Mapping[str, float | None], *, may_lack: bool) -> None:
    for name, value in values.items():
        if value is None and may_lack:
            continue
        if value is None or not 0 <= value <= 1:  # a number that was not finite is null in the file
            raise InvalidInput(f"{name} is {value}, expected a share from 0 to 1")


def _check_range(values: Mapping[str, float | None], least: int, what: str) -> None:
    for name, value in values.items():
        if value is not None and not (least <= value <= MOST and (value == 0 or value >= TINIEST)):
            raise InvalidInput(f"{name} of {what} must be from {least} to {MOST:g}, not {value}")


__all__ = ["KINDS", "Cell", "Record", "finite", "out_of_memory_at"]
