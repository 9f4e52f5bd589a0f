"""The table of tasks. To add one: its file, and its line here."""

from importlib import import_module
from typing import Any

from longspan import config
from longspan.errors import UnknownName, suggest
from longspan.tasks.base import Task

TASKS: dict[str, str] = {
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
}


def find(name: str) -> type[Task]:
    """The class of a task."""
    if name not in TASKS:
        raise UnknownName(f"no task is called {name!r}: {suggest(name, TASKS)}")
    module, _, attribute = TASKS[name].partition(":")
    found = getattr(import_module(module), attribute)
    assert issubclass(found, Task)
    return found


def build(name: str, **options: Any) -> Task:
    """A task by its name, with options by theirs."""
    cls = find(name)
    return cls(config.make(cls.Options, options, f"task {name}"))


__all__ = ["TASKS", "build", "find"]
