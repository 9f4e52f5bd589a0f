"""The tasks of the arena by name: how each is read or made, and what trivial predictors reach on it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from longspan import config
from longspan.arena.tasks.examples import Splits
from longspan.registry import Registry

if TYPE_CHECKING:
    from longspan.arena.settings import ArenaSetting


@dataclass(frozen=True)
class DataFolders:
    """Where data is found, and where what is made is kept."""

    data: Path | None  # the folder of data sets: --data, or LONGSPAN_DATA
    cache: Path  # what generators made, by a hash of what was asked for
    processes: int = 1  # that make it


class ArenaTask(ABC):
    """A task with options of its own, such as lengths; a setting gives them."""

    name: ClassVar[str]
    title: ClassVar[str]  # as papers print it
    generated: ClassVar[bool]  # whether it needs no files
    pixels: ClassVar[bool] = False  # whether tokens are intensities, which are regressed in self pre-training
    # A plugin's own sizes by setting ("tiny", …); without them it has ListOps' model and training, and its defaults.
    settings: ClassVar[Mapping[str, "ArenaSetting"]] = {}

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pass

    def __init__(self, options: Any) -> None:
        self.options: Any = options

    def check(self, place: DataFolders) -> None:
        """Says what files are missing, before anything is run; contents are looked at by `splits`."""
        return  # what is generated needs none

    @abstractmethod
    def splits(self, place: DataFolders, seed: int = 0) -> Splits:
        """The data; what is missing or wrong is said by file and row."""

    @abstractmethod
    def baselines(self, splits: Splits) -> dict[str, float]:
        """Accuracies on `splits.test` of predictors that read next to nothing, `majority` among them."""


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
    },
)
names, find = TASKS.names, TASKS.find


def build(name: str, options: Mapping[str, Any]) -> ArenaTask:
    """A task by its name, with options by theirs."""
    cls = find(name)
    return cls(config.make(cls.Options, options, f"the task {name}"))


__all__ = ["TASKS", "ArenaTask", "DataFolders", "build", "find"]
