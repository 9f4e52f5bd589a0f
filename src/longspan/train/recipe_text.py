"""The text of a recipe with every key explained: those that are set, and the others as comments with their default."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from textwrap import wrap
from typing import Any, get_type_hints

from longspan import config
from longspan.models import presets
from longspan.models import registry as models
from longspan.tasks import registry as tasks
from longspan.train.options import TrainOptions
from longspan.train.recipe import Recipe
from longspan.train.recipe_keys import MODEL_KEYS, inline, options_class

WIDTH = 100
COMMON = ("train", "length", "batch")  # keys that are written even where they have their default
# Options of models that follow from the data.
OF_TASK = ("vocabulary", "source_vocabulary", "padding", "mask", "tasks", "image_size", "channels")
BOUNDS = (("low", "at least"), ("above", "above"), ("high", "at most"), ("below", "below"))
BARE = re.compile(r"[A-Za-z0-9_-]+")


def commented(recipe: Recipe, notes: list[str]) -> str:
    """The text of a recipe, with a comment on every key; `notes` come first, one line each."""
    name = str(recipe.task["name"])
    lines = [line for note in notes for line in _comment(note)]
    lines += ["", *_comment("What is learned, and from which data."), "[task]", f"name = {inline(name)}"]
    lines += _table(tasks.find(name).Options, recipe.task, "task", common=COMMON)
    lines += ["", *_comment("The model."), "[model]", *_model(recipe.model)]
    lines += ["", *_comment("How it is trained."), "[train]", *_table(TrainOptions, recipe.train, "train")]
    return "\n".join(lines) + "\n"


def _model(table: Mapping[str, Any]) -> Iterator[str]:
    given = {**table}
    name = given.pop("name", None)
    if name is None:
        for row in MODEL_KEYS:
            if row["name"] != "name":
                yield from _key(row["name"], given, row["default"], row["help"])
        yield from _rest(given, {row["name"] for row in MODEL_KEYS})
        return
    yield f"name = {inline(name)}"
    preset = name in presets.PRESETS
    cls = models.find(presets.find(name).model if preset else name)
    yield from _table(cls.Options, given, "model", skip=OF_TASK)


def _rest(given: Mapping[str, Any], known: set[str]) -> Iterator[str]:
    for key, value in given.items():
        if key not in known:
            yield f"{key} = {inline(value)}"


def _table(
    cls: type[config.Options],
    given: Mapping[str, Any],
    path: str,
    *,
    common: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    start: Any = None,
) -> Iterator[str]:
    """The keys of a table, then its sub-tables."""
    hints = get_type_hints(cls)
    nested: list[tuple[str, type[config.Options], Any, str]] = []
    for row, item in zip(config.describe(cls), fields(cls)):
        default = row["default"] if start is None else getattr(start, item.name)
        inner = options_class(hints[item.name])
        if inner is not None and default is not None:
            nested.append((item.name, inner, default, row["help"]))
            continue
        if item.name in skip and item.name not in given:
            yield f"# {item.name}: the task sets it"
            continue
        plain = config.plain(default)
        wanted = item.name in common and plain is not None
        yield from _key(item.name, {item.name: plain, **given} if wanted else given, plain, _help(row))
    for name, inner, default, help in nested:
        yield ""
        yield from _comment(help)
        yield f"[{path}.{name}]"
        yield from _table(inner, _differing(inner, default, given.get(name)), f"{path}.{name}", start=default)


def _differing(cls: type[config.Options], default: Any, given: Any) -> dict[str, Any]:
    """The keys of a sub-table that must be written: what is given, and what the owner of the table sets other than
    the table's own class does."""
    own, usual = config.plain(default), {row["name"]: config.plain(row["default"]) for row in config.describe(cls)}
    kept = {key: value for key, value in own.items() if value != usual[key]}
    return {**kept, **config.plain(given)} if given is not None else kept


def _key(name: str, given: Mapping[str, Any], default: Any, help: str) -> Iterator[str]:
    yield from _comment(help)
    spelled = name if BARE.fullmatch(name) else inline(name)
    if given.get(name) is not None:
        yield f"{spelled} = {inline(config.plain(given[name]))}"
    elif default is None:
        yield f"# {spelled} = (none)"
    else:
        yield f"# {spelled} = {inline(default)}"


def _help(row: Mapping[str, Any]) -> str:
    if row["choices"]:
        return f"{row['help']} ({', '.join(row['choices'])})"
    bounds = [f"{word} {row[key]:g}" for key, word in BOUNDS if row.get(key) is not None]
    return f"{row['help']} ({', '.join(bounds)})" if bounds else str(row["help"])


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, WIDTH - 2)]


__all__ = ["commented"]
