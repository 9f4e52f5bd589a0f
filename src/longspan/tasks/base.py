"""What is asked of a model: a task prepares its data, and has an objective with a loss and figures.

Losses are sums with the number of things they are over, never means: only so are micro-batches and processes with
different numbers of real tokens added up rightly.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from longspan import config
from longspan.data.base import Batch, Data
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.models.base import Model

FILES = ("train", "held_out", "test", "tokens")  # options of tasks that are paths


@dataclass(frozen=True)
class TaskLoss:
    """The loss of a batch, summed; `parts` are further sums for the log, each over the same count."""

    total: Tensor
    parts: Mapping[str, Tensor]
    carried: Any = None  # what the model remembers for the next batch, where it does


class Metrics(ABC):
    """Counts that add up over batches and processes, and the figures they make."""

    @abstractmethod
    def add(self, other: "Metrics") -> None:
        """Takes in those of another batch or process."""

    @abstractmethod
    def result(self) -> dict[str, float]:
        """The figures, by name."""

    def table(self) -> list[dict[str, Any]]:
        """Rows for whoever wants to know more, such as what was said of each label."""
        return []


class Objective(ABC):
    """An objective on a kind of batch."""

    results: ClassVar[tuple[str, ...]] = ()  # parts of the model that are saved by themselves too, under their names

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """How many things the loss of a batch is over, such as real targets."""

    @abstractmethod
    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        """The loss of a batch; `carried` is what the last one left."""

    @abstractmethod
    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        """The figures of a batch, in evaluation mode and without gradients; and what is carried on."""

    def final(self, model: Model, data: Data, batches: Sequence[Sequence[int]]) -> Metrics | None:
        """What is measured once, of the trained model, since it takes long (BLEU of a search); None: nothing is.

        `batches` are those of `data.batches(0)` that this process takes.
        """
        return None


@dataclass(frozen=True)
class DataPaths:
    """Where a task finds and keeps things."""

    data: Path | None  # the folder of data sets: --data, or LONGSPAN_DATA
    work: Path  # what was prepared, such as token files
    seed: int = 0


@dataclass(frozen=True)
class Prepared:
    """A task that is ready to be trained on."""

    train: Data
    held_out: Data
    objective: Objective
    test: Data | None = None
    tokenizer: Tokenizer | None = None
    needs: Mapping[str, Any] = field(default_factory=dict)  # options that a model for it must have: vocabulary, tasks
    facts: Mapping[str, Any] = field(default_factory=dict)  # for the reader: sizes, labels, padding, baselines
    objectives: Mapping[str, Objective] = field(default_factory=dict)  # of splits that need another than `objective`


class Task(ABC):
    """A kind of data with its objective; a recipe's table `[task]` names it and gives its options."""

    name: ClassVar[str]

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pass

    def __init__(self, options: Any) -> None:
        self.options: Any = options

    @abstractmethod
    def prepare(self, place: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        """Reads the data, and cuts it into tokens; `tokenizer` is that of a model which is trained further.

        What is wrong with the files is said here, by file and line, before training starts.
        """


def located(options: Any) -> Any:
    """The options of a task with absolute paths, so that a run finds its files from any folder.

    Where a set is named, the files are its own, and `test` may be a name.
    """
    if getattr(options, "set", None) is not None:
        return options
    paths = {name: getattr(options, name, None) for name in FILES}
    given = {name: path for name, path in paths.items() if path is not None}
    return replace(options, **{name: os.path.abspath(path) for name, path in given.items()})  # noqa: PTH100


__all__ = ["DataPaths", "Metrics", "Objective", "Prepared", "Task", "TaskLoss", "located"]
