"""The table of tasks, and `build`. To add a task, write its file and its line here."""

from typing import Any

from longspan import config
from longspan.registry import Registry
from longspan.tasks.base import Task

TASKS: Registry[Task] = Registry(
    "task",
    "longspan.tasks",
    "longspan.tasks.base:Task",
    {
        "images": "longspan.tasks.images:Images",
        "language": "longspan.tasks.language:Language",
        "masked": "longspan.tasks.masked:MaskedLanguage",
        "detect": "longspan.tasks.detect:Detect",
        "denoise": "longspan.tasks.denoise:Denoise",
        "classify": "longspan.tasks.classify:Classify",
        "choose": "longspan.tasks.choose:Choose",
        "tag": "longspan.tasks.tag:Tag",
        "answer": "longspan.tasks.answer:Answer",
        "translate": "longspan.tasks.translate:Translate",
        "algorithm": "longspan.tasks.algorithm:SolveAlgorithm",
    },
)
names, find = TASKS.names, TASKS.find


def build(name: str, **options: Any) -> Task:
    """Builds a task by its name from its options."""
    cls = find(name)
    return cls(config.make(cls.Options, options, f"task {name}"))


__all__ = ["TASKS", "build", "find", "names"]
