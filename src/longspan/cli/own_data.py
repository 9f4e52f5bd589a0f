"""Flags of `longspan train` and `longspan recipe`: values of a recipe, and options of its task without a prefix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from longspan.errors import InvalidOption, suggest
from longspan.parsing import toml_value

if TYPE_CHECKING:
    from longspan.tasks.base import Task
    from longspan.train.recipe import Recipe

EXAMPLE = "values of a recipe are given as --train.steps 500"


@dataclass
class Flags:
    """What was given: options of the task, as text (None: no value), and values by their dotted names."""

    plain: dict[str, str | None] = field(default_factory=dict)
    dotted: dict[str, Any] = field(default_factory=dict)

    def overrides(self, recipe: Path) -> dict[str, Any]:
        """All of them by dotted names, for the task of a recipe."""
        if not self.plain:
            return self.dotted
        from longspan.parsing import read_toml
        from longspan.tasks import registry
        from longspan.train.recipe import find

        table = read_toml(find(recipe)).get("task", {})
        name = table.get("name") if isinstance(table, dict) else None
        if not isinstance(name, str):
            raise InvalidOption(f"{recipe} names no task, so --{next(iter(self.plain))} is unknown")
        options = task_options(registry.find(name), self.plain)
        return {**{f"task.{key}": value for key, value in options.items()}, **self.dotted}


def read_words(words: Sequence[str]) -> tuple[Path | None, Flags]:
    """The recipe, if a word names one, and the flags: `--name value`, `--name=value`, `--name`."""
    recipe: Path | None = None
    flags = Flags()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            if recipe is not None or word.startswith("-"):
                raise InvalidOption(f"{word!r} follows no option; {EXAMPLE}")
            recipe = Path(word)
            continue
        name, equals, text = word.removeprefix("--").partition("=")
        value: str | None = text if equals else None
        if not equals and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        if "." in name:
            if value is None:
                raise InvalidOption(f"--{name} has no value")
            flags.dotted[name] = toml_value(value)
        else:
            flags.plain[name] = value
    return recipe, flags


def task_options(cls: "type[Task]", given: Mapping[str, str | None]) -> dict[str, Any]:
    """Options of a task from flags: `--held-out FILE` is `held_out`; values have the type of their option."""
    from longspan.tasks.registry import SPELLINGS

    kinds = get_type_hints(cls.Options)
    options: dict[str, Any] = {}
    for flag, text in given.items():
        name = flag.replace("-", "_")
        name = name if name in kinds else SPELLINGS.get(name, name)
        if name not in kinds:
            raise InvalidOption(_unknown(flag, name, cls, list(kinds)))
        options[name] = _converted(text, kinds[name], flag)
    return options


def _unknown(flag: str, name: str, cls: "type[Task]", known: list[str]) -> str:
    from dataclasses import fields

    from longspan.train.options import TrainOptions

    for table, names in (("train", [item.name for item in fields(TrainOptions)]), ("model", MODEL)):
        if name in names:
            return f"there is no option --{flag}; did you mean --{table}.{name}?"
    hint = suggest(flag, [key.replace("_", "-") for key in known])
    return f"the task {cls.name} has no option --{flag}: {hint.replace(chr(39), '')}; {EXAMPLE}"


MODEL = ("layers", "heads", "width", "hidden", "dropout", "attention", "position", "max_length", "activation")


def _converted(text: str | None, kind: Any, flag: str) -> Any:
    members = [member for member in get_args(kind) if member is not NoneType] if _is_union(kind) else [kind]
    if text is None:
        if bool in members:
            return True
        raise InvalidOption(f"--{flag} has no value")
    if str in members:
        return text
    tuples = [member for member in members if get_origin(member) is tuple]
    if tuples and not text.startswith("["):
        item = get_args(tuples[0])[0]
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return [part if item is str else toml_value(part) for part in parts]
    return toml_value(text)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) is UnionType


def written(
    task: str | None, flags: Flags, pretrained: str | None, *, need_data: bool = True
) -> "tuple[Recipe, list[str], str]":
    """A recipe for the user's own data: the recipe, what was chosen, and a name for the run."""
    from longspan import registry as plugins
    from longspan.tasks import registry
    from longspan.train.starting_recipe import starting_recipe

    task = task or _task_of_set(flags.plain.get("set"))
    if task is None:
        names = ", ".join(registry.names())
        raise InvalidOption(f"give a recipe, or --task NAME with --train FILE; tasks: {names}")
    if plugins.is_path(task):
        plugins.trust(task)
    options = task_options(registry.find(task), flags.plain)
    rest: dict[str, Any] = {}
    for name, value in flags.dotted.items():
        table, _, key = name.partition(".")
        if table == "task" and "." not in key:
            options[key] = value
        else:
            rest[name] = value
    if pretrained is not None and ("model.name" in rest or "model.from" in rest):
        raise InvalidOption("--from names the model; leave out --model.name and --model.from")
    pretrained = pretrained or rest.pop("model.from", None)
    recipe, notes = starting_recipe(task, options, pretrained=pretrained, overrides=rest, need_data=need_data)
    source = options.get("train") or options.get("set") or options.get("tokens") or task
    return recipe, notes, _stem(str(source)) or task


def _task_of_set(name: str | None) -> str | None:
    if name is None:
        return None
    from longspan.data.sets import named as named_sets

    return named_sets.find(name).kind


def _stem(source: str) -> str:
    from longspan.data.text.hub_datasets import PREFIX, HubName
    from longspan.data.text.text_files import PACKED

    if source.startswith(PREFIX):
        return Path(HubName.read(source).name).name
    path = Path(source.rstrip("/"))
    return Path(path.stem).stem if path.suffix in PACKED else path.stem


__all__ = ["Flags", "read_words", "task_options", "written"]
