"""The base classes of tasks: `Task` prepares data, `Objective` is a loss and its metrics on batches of that data.

A loss is a sum, together with the number of items it is over (tokens, texts), never a mean. Only sums add up correctly
over micro-batches and processes with different numbers of real tokens.

An objective asks for an ability of `longspan.models.base`, never for a class of model, so that new models can join.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from longspan import config
from longspan.data.base import Batch, Data
from longspan.data.text.hub_datasets import PREFIX, HubName
from longspan.data.text.word_sentences import Vocabulary
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import Unsupported
from longspan.models.base import Model
from longspan.models.image_base import PixelScale

FILES = ("train", "held_out", "test", "tokens")  # options of tasks that are paths of data
MODEL_FOLDERS = ("teacher",)  # options that are folders of models, or package:NAME


@dataclass(frozen=True)
class TaskLoss:
    """The loss of a batch, summed; `parts` are further sums for the log, each over the same count."""

    total: Tensor
    parts: Mapping[str, Tensor]
    carried: Any = None  # the memory for the next batch, if the model has one
    # What a teacher's are compared with: logits (items, classes) of the items that count or, for numbers, (items,).
    outputs: Tensor | None = None


class Metrics(ABC):
    """Counts that add up over batches and processes, and the metrics that follow from them."""

    @abstractmethod
    def add(self, other: "Metrics") -> None:
        """Adds the counts of another batch or process."""

    @abstractmethod
    def result(self) -> dict[str, float]:
        """The metrics, by name."""

    def table(self) -> list[dict[str, Any]]:
        """Rows with details, such as the predictions for each label."""
        return []


class Objective(ABC):
    """A loss, and metrics, on batches of one kind."""

    results: ClassVar[tuple[str, ...]] = ()  # attributes of the model that are also saved by themselves
    unit: ClassVar[str] = "tokens"  # what `count` counts, in the words of a progress line
    # Whether losses keep `outputs` for a teacher: "" no, "counted" of the items that count, "all" of every real token.
    compared: str = ""

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """The number of items that the loss of a batch is over, such as real targets."""

    @abstractmethod
    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        """The loss of a batch; `carried` is the memory after the previous batch."""

    @abstractmethod
    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        """The metrics of a batch, in evaluation mode and without gradients; and the memory for the next batch."""

    def final(self, model: Model, data: Data, batches: Sequence[Sequence[int]]) -> Metrics | None:
        """Metrics that are too slow for every evaluation, such as BLEU of beam search: of the trained model, once.

        `batches` are the batches of `data.batches(0)` for this process. None: there are no such metrics.
        """
        return None


@dataclass(frozen=True)
class DataPaths:
    """The folders that a task reads from and writes to, and the seed of its order."""

    data: Path | None  # the folder of data sets: --data, or LONGSPAN_DATA
    work: Path  # for prepared data, such as token files
    seed: int = 0
    split: Path | None = None  # the file with the numbers of held-out rows, if a run keeps them


@dataclass(frozen=True)
class Prepared:
    """A task that is ready to train on."""

    train: Data
    held_out: Data
    objective: Objective
    test: Data | None = None
    tokenizer: Tokenizer | None = None
    needs: Mapping[str, Any] = field(default_factory=dict)  # options that its model must have: vocabulary, tasks
    facts: Mapping[str, Any] = field(default_factory=dict)  # for the reader: sizes, labels, padding, baselines
    objectives: Mapping[str, Objective] = field(default_factory=dict)  # by split, where it differs from `objective`
    pixel_scale: PixelScale | None = None  # of training images, which the model keeps for predictions
    words: Vocabulary | None = None  # what the rows of a model with `NamedRows` are called


class Task(ABC):
    """A kind of data with its objective; the table `[task]` of a recipe gives its name and options.

    A subclass declares its `Options`, and `options: Options` below them, so that type checkers know their fields.
    """

    name: ClassVar[str]
    # The tables of a recipe that is written for a user's own data (see `starting`). Where a task declares no model and
    # no training, they are those of a recipe that comes with longspan.
    starting_task: ClassVar[Mapping[str, Any]] = {}
    starting_model: ClassVar[Mapping[str, Any]] = {}
    starting_train: ClassVar[Mapping[str, Any]] = {}

    reads_text: ClassVar[bool] = True  # whether a pretrained model must have a tokenizer

    options: Any

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pass

    def __init__(self, options: Any) -> None:
        self.options = options

    def suggest_model(self) -> Mapping[str, Any]:
        """The table [model] to begin with, for the data that the options name."""
        return self.starting_model

    @classmethod
    def guess_options(cls, table: dict[str, Any]) -> list[str]:
        """Adds what the training file tells to the table [task] of a written recipe; lines that say so."""
        return []

    @abstractmethod
    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        """Reads and tokenizes the data; `tokenizer` is given where a pretrained model is trained further.

        Errors in the files are raised here, with file and line, before training starts.
        """


TaskOptions = TypeVar("TaskOptions", bound=config.Options)


def located(options: TaskOptions) -> TaskOptions:
    """The options of a task with absolute paths, so that a run finds its files from any folder.

    If the options name a data set, they have no paths of data, and `test` may be a name.
    """
    names = (*MODEL_FOLDERS, *(FILES if getattr(options, "set", None) is None else ()))
    paths = {name: getattr(options, name, None) for name in names}
    absolute = {
        name: HubName.read(path).absolute() if path.startswith(PREFIX) else os.path.abspath(path)  # noqa: PTH100
        for name, path in paths.items()
        if path is not None and not path.startswith("package:")
    }
    return replace(options, **absolute)


def head_output(model: Model, outputs: Mapping[str, Tensor], task: str) -> Tensor:
    """The output of the head for `task`, or an error that says which heads the model has."""
    if task not in outputs:
        raise Unsupported(f"this {model.name} has no head for {task!r}; it has {', '.join(outputs) or 'none'}")
    return outputs[task]


__all__ = ["DataPaths", "Metrics", "Objective", "Prepared", "Task", "TaskLoss", "head_output", "located"]
