"""The table of tasks, and `build`. To add a task, write its file and its line here."""

from collections.abc import Mapping
from dataclasses import fields
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
        "bidirectional": "longspan.tasks.bidirectional:Bidirectional",
        "words": "longspan.tasks.words:Words",
        "masked": "longspan.tasks.masked:MaskedLanguage",
        "detect": "longspan.tasks.detect:Detect",
        "denoise": "longspan.tasks.denoise:Denoise",
        "classify": "longspan.tasks.classify:Classify",
        "choose": "longspan.tasks.choose:Choose",
        "tag": "longspan.tasks.tag:Tag",
        "answer": "longspan.tasks.answer:Answer",
        "series": "longspan.tasks.series:Series",
        "translate": "longspan.tasks.translate:Translate",
        "summarize": "longspan.tasks.summarize:Summarize",
        "algorithm": "longspan.tasks.algorithm:SolveAlgorithm",
        "sets": "longspan.tasks.sets:SetTask",
        "table": "longspan.tasks.table:TableTask",
        "pixels": "longspan.tasks.pixels:PixelTask",
    },
)
names, find = TASKS.names, TASKS.find
SPELLINGS = {"held_out_share": "share", "text_b": "second"}  # other names of options


def build(name: str, **options: Any) -> Task:
    """Builds a task by its name from its options."""
    cls = find(name)
    return cls(config.make(cls.Options, spelled(cls, options), f"task {name}"))


def spelled(cls: type[Task], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with other names replaced by the task's own."""
    known = {item.name for item in fields(cls.Options)}
    return {
        SPELLINGS[key] if key not in known and SPELLINGS.get(key) in known else key: value
        for key, value in options.items()
    }


__all__ = ["SPELLINGS", "TASKS", "build", "find", "names", "spelled"]
