"""A recipe for a user's own data: columns are guessed where they are not given, model and training are small."""

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from longspan import config
from longspan.data.text.tables import format_of
from longspan.data.text.text_folders import IMAGES, folder_files, holds_images
from longspan.errors import InvalidInput, InvalidOption
from longspan.parsing import read_toml
from longspan.tasks import registry as tasks
from longspan.tasks import starting
from longspan.tasks.base import Task
from longspan.tasks.survey import Opened, open_rows, roles_of
from longspan.train.recipe import Recipe, with_overrides
from longspan.train.recipe_keys import inline, packaged, recipes

Table = dict[str, Any]
WARM = 0.1  # share of the steps in which the rate rises
PATIENCE = 3  # epochs without a better evaluation, after which training stops


def starting_recipe(
    name: str,
    options: Mapping[str, Any],
    *,
    pretrained: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    need_data: bool = True,
) -> tuple[Recipe, list[str]]:
    """A recipe for the task `name` with these options, and lines that say what was chosen.

    `pretrained` is a model to train further. `overrides` are values by their dotted names.
    """
    overrides = overrides or {}
    cls = tasks.find(name)
    table = {**cls.starting_task, **tasks.spelled(cls, options)}
    known = {item.name for item in fields(cls.Options)}
    sources = [key for key in ("set", "train", "tokens") if key in known]
    if need_data and sources and not any(table.get(key) for key in sources):
        named = ", or --set NAME for a named set" if "set" in sources else ""
        raise InvalidOption(f"the task {name} has no data: give --train FILE{named}")
    notes: list[str] = []
    config.make(cls.Options, table, f"task {name}")  # refuse a wrong option before anything is read
    count = _describe_data(cls, table, notes) if table.get("train") else None
    if table.get("train"):
        notes += cls.guess_options(table)
    task = tasks.build(name, **table)
    tables = _model(task, pretrained, overrides.get("model.name")), _train(task, table, count, pretrained, overrides)
    recipe = with_overrides(Recipe({"name": name, **table}, *tables, f"the recipe for {name}"), overrides)
    recipe.options()  # refuse a wrong value of [train]
    return recipe, [*notes, *_choices(recipe)]


def _choices(recipe: Recipe) -> list[str]:
    """The model and the training of a recipe in a line each."""
    model, train = recipe.model, recipe.train
    sizes = [f"{key} {model[key]}" for key in ("layers", "heads", "width", "patch_size") if key in model]
    what = f"{model['from']}, trained further" if "from" in model else f"a new {model['name']}"
    unit = "epochs" if "epochs" in train else "steps"
    length = f"{train[unit]:g} {unit if train[unit] != 1 else unit[:-1]}"
    schedule = train.get("schedule", {})
    warmup = f", warm-up of {schedule['warmup']}" if schedule.get("warmup") else ""
    return [f"model: {', '.join([what, *sizes])}", f"training: {length}, rate {schedule.get('rate', 1e-3):g}{warmup}"]


def _describe_data(cls: type[Task], table: Table, notes: list[str]) -> int | None:
    """Adds the columns of the training file to the table; the number of its rows, if they are rows."""
    path = Path(str(table["train"]))
    if path.is_dir() and holds_images(path):
        return len(folder_files(path, IMAGES))
    roles = roles_of(cls)
    if not roles and "epochs" not in cls.starting_train:
        return None
    opened = _opened(path, cls, table)
    for role, default in roles.items():
        column = opened.found.get(role)
        if role not in table and column is not None and column != default and format_of(path) != "folder":
            table[role] = column
            notes.append(f"{role} = {inline(column)}, a column of {path}: {opened.why[column].partition(': ')[2]}")
    return sum(1 for _ in opened.rows) if "epochs" in cls.starting_train else None


def _opened(path: Path, cls: type[Task], table: Table) -> Opened:
    roles = roles_of(cls)
    given = {role: str(table[role]) for role in roles if role in table}
    options = {key: table[key] for key in ("columns", "encoding", "word_column", "tag_column") if key in table}
    return open_rows(path, cls.name, given=given, roles=roles, **options)


def _model(task: Task, pretrained: str | None, model: str | None) -> Table:
    if pretrained is not None:
        return {"from": pretrained}
    chosen = dict(task.suggest_model()) if type(task).starting_model else _of_recipe(task.name, "model")
    return chosen if model in (None, chosen["name"]) else {"name": model}  # another kind has its own options


def _train(task: Task, table: Table, count: int | None, pretrained: str | None, overrides: Mapping[str, Any]) -> Table:
    chosen = dict(type(task).starting_train) or _of_recipe(task.name, "train")
    if pretrained is not None:
        chosen |= starting.FURTHER if "epochs" in chosen else starting.FURTHER_STEPS
    if getattr(task.options, "regression", False):
        chosen = {key: value for key, value in chosen.items() if key not in ("watch", "higher")}
    batch, share = getattr(task.options, "batch", None), getattr(task.options, "share", 0.0)
    if count is not None and batch and "epochs" in chosen:
        rows = count if table.get("held_out") else count - max(1, round(count * share))
        per_epoch = max(1, math.ceil(rows / batch))
        epochs, steps = overrides.get("train.epochs", chosen["epochs"]), overrides.get("train.steps")
        total = steps if isinstance(steps, int) else per_epoch * (epochs if isinstance(epochs, (int, float)) else 1)
        warmup = max(1, round(WARM * total))
        chosen["schedule"] = {**chosen["schedule"], "warmup": warmup}
        chosen |= {"evaluate_every": per_epoch, "save_every": per_epoch}
        if overrides.get("train.evaluate_every", per_epoch):  # then the best checkpoint is the final model
            chosen["patience"] = PATIENCE
    return chosen


def _of_recipe(task: str, table: str) -> Table:
    """A table of a recipe that comes with longspan for the task, where the task declares none itself."""
    names = packaged(task)
    if not names:
        raise InvalidInput(f"the task {task!r} says no model to begin with; write a recipe with [model] and [train]")
    return dict(read_toml(recipes()[names[0]])[table])


__all__ = ["starting_recipe"]
