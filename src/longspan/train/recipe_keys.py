"""Every key of a recipe, with its type, default, limits and help: for `longspan show` and the docs."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import longspan
from longspan import config
from longspan.tasks import registry as tasks
from longspan.tasks.base import Task
from longspan.train.options import TrainOptions

# Keys of [model] that are no options of a model.
MODEL_KEYS: tuple[dict[str, Any], ...] = (
    {"name": "name", "type": "str", "default": None, "help": "a kind of model or a preset, with its options"},
    {"name": "from", "type": "str", "default": None, "help": "a pretrained model to train further, instead of name"},
    {
        "name": "trained",
        "type": "str or int",
        "default": "all",
        "help": "all, head, or a number of blocks from the top",
    },
    {
        "name": "features",
        "type": "str",
        "default": None,
        "help": "freeze the body; the head reads its layers: last, sum4, concat4 or mix",
    },
    {
        "name": "fresh",
        "type": "bool",
        "default": False,
        "help": "take the shape and tokenizer of `from`, not its weights",
    },
    {"name": "head", "type": "table", "default": None, "help": "options of the head: pool, activation, inner, dropout"},
)
SPELLS = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "none": "none"}


def keys(cls: type[config.Options], prefix: str = "", start: Any = None) -> Iterator[dict[str, Any]]:
    """The keys of options; those of nested options follow theirs, as `schedule.rate`.

    Defaults are those of the object `start` if given, since nested options may begin with others than their class.
    """
    hints = get_type_hints(cls)
    for row, item in zip(config.describe(cls), fields(cls)):
        default = row["default"] if start is None else getattr(start, item.name)
        nested = options_class(hints[item.name])
        yield {**row, "name": prefix + row["name"], "default": config.plain(default), "nested": nested is not None}
        if nested is not None and is_dataclass(default):
            yield from keys(nested, f"{prefix}{item.name}.", default)


def options_class(kind: Any) -> type[config.Options] | None:
    """The class of nested options that a field holds, such as the tokenizer's."""
    if get_origin(kind) is UnionType:
        return next((cls for cls in map(options_class, get_args(kind)) if cls is not None), None)
    return kind if isinstance(kind, type) and issubclass(kind, config.Options) and not hasattr(kind, "read") else None


def describe_task(name: str) -> dict[str, Any]:
    """A task: what it learns, and its keys, ready for JSON."""
    cls = tasks.find(name)
    return {"name": name, "summary": summary(cls), "keys": list(keys(cls.Options)), "recipes": packaged(name)}


def describe_train() -> dict[str, Any]:
    """The keys of [train], ready for JSON."""
    return {"name": "train", "summary": "how a model is trained: the table [train]", "keys": list(keys(TrainOptions))}


def summary(cls: type[Task]) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")


def recipes() -> dict[str, Path]:
    """The recipes that come with longspan, by name."""
    folder = Path(longspan.__file__).parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def packaged(task: str) -> list[str]:
    """The recipes that come with longspan for a task."""
    from longspan.parsing import read_toml

    return [name for name, path in recipes().items() if read_toml(path).get("task", {}).get("name") == task]


def spell_type(row: Mapping[str, Any]) -> str:
    """The type of a key in plain words."""
    if row.get("nested"):
        return "table"
    words = str(row["type"]).replace("a tuple of ", "list of ").split(" ")
    return " ".join(SPELLS.get(word, word) for word in words)


def spell_default(row: Mapping[str, Any]) -> str:
    """The default of a key as TOML writes it; none: there is no default."""
    if row.get("nested"):
        return ""
    return "none" if row["default"] is None else inline(row["default"])


def inline(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key} = {inline(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(inline, value))}]"
    if isinstance(value, str):
        return _quoted(value)
    return repr(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    for letter in {letter for letter in escaped if ord(letter) < 32 or ord(letter) == 127}:
        escaped = escaped.replace(letter, f"\\u{ord(letter):04x}")
    return f'"{escaped}"'


__all__ = [
    "MODEL_KEYS",
    "describe_task",
    "describe_train",
    "inline",
    "keys",
    "options_class",
    "packaged",
    "recipes",
    "spell_default",
    "spell_type",
    "summary",
]
