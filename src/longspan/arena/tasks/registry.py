"""The tasks of the arena by name: their data, and the accuracies of trivial predictors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from longspan import config
from longspan.arena.tasks.examples import Splits
from longspan.registry import Registry

if TYPE_CHECKING:
    from longspan.arena.settings import ArenaSetting


@dataclass(frozen=True)
class DataFolders:
    """Where data sets are, and where generated data is kept."""

    data: Path | None  # the folder of data sets: --data, or LONGSPAN_DATA
    cache: Path  # generated data, by a hash of its options
    processes: int = 1  # that generate data


@dataclass(frozen=True)
class TokenGroups:
    """A partition of the labelled tokens of a test, by which accuracy is reported too."""

    by: str  # what separates the groups, such as "tokens between a key and its question"
    names: tuple[str, ...]
    numbers: np.ndarray  # int64 (tokens,): the group of each token of the test; at tokens without a label, anything


class ArenaTask(ABC):
    """A task with its options, such as lengths, which a setting gives."""

    name: ClassVar[str]
    title: ClassVar[str]  # as papers print it
    generated: ClassVar[bool]  # whether it needs no files
    pixels: ClassVar[bool] = False  # whether tokens are intensities, which self pre-training predicts as numbers
    # A plugin's sizes by setting ("tiny", …); by default ListOps' model and training, and the task's own defaults.
    settings: ClassVar[Mapping[str, "ArenaSetting"]] = {}

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pass

    def __init__(self, options: Any) -> None:
        self.options: Any = options

    def check(self, folders: DataFolders) -> None:
        """Raises if files are missing, before anything runs; `splits` reads their contents."""
        return  # generated data needs no files

    @abstractmethod
    def splits(self, folders: DataFolders, seed: int = 0) -> Splits:
        """The data; an error names the file and the row."""

    @abstractmethod
    def baselines(self, splits: Splits) -> dict[str, float]:
        """Accuracies on `splits.test` of trivial predictors, including `majority`."""

    def groups(self, splits: Splits) -> TokenGroups | None:
        """Parts of the test that are also reported by themselves; for tasks whose tokens have labels."""
        return None


TASKS: Registry[ArenaTask] = Registry(
    "arena task",
    "longspan.arena_tasks",
    "longspan.arena.tasks.registry:ArenaTask",
    {  # in the order of the benchmark
        "listops": "longspan.arena.tasks.listops:ListOps",
        "text": "longspan.arena.tasks.texts:TextTask",
        "retrieval": "longspan.arena.tasks.texts:Retrieval",
        "image": "longspan.arena.tasks.images:ImageTask",
        "pathfinder": "longspan.arena.tasks.pathfinder.task:Pathfinder",
        "pathx": "longspan.arena.tasks.pathfinder.task:PathX",
        "recall": "longspan.arena.tasks.recall:Recall",  # our own
        # Not in the benchmark: small tasks with a label at every token asked for, which tell mechanisms apart.
        "mqar": "longspan.arena.tasks.mqar:Mqar",
        "selective_copy": "longspan.arena.tasks.selective_copy:SelectiveCopy",
        "parity": "longspan.arena.tasks.parity:Parity",
    },
)
names, find = TASKS.names, TASKS.find


def build(name: str, options: Mapping[str, Any]) -> ArenaTask:
    """Build a task by its name and options."""
    cls = find(name)
    return cls(config.make(cls.Options, options, f"the task {name}"))


__all__ = ["TASKS", "ArenaTask", "DataFolders", "TokenGroups", "build", "find"]
