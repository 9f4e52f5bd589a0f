"""`longspan list` and `longspan show`: mechanisms, models, presets and checkpoints."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from longspan.cli import mechanism_table
from longspan.cli.inputs import AsJson, print_json, whole_numbers
from longspan.cli.mechanism_table import Row
from longspan.cli.models import print_checkpoint, print_model, print_models, print_preset, print_presets
from longspan.cli.recipes import SHOWN, list_tasks, print_shown, print_tasks
from longspan.cli.recipes import describe as describe_recipe
from longspan.cli.tables import limits, output
from longspan.errors import InvalidOption


def list_names(
    *,
    models: Annotated[bool, Parameter(negative="", help="list the models instead")] = False,
    presets: Annotated[
        bool, Parameter(negative="", help="list the presets instead: models with a paper's sizes")
    ] = False,
    tasks: Annotated[bool, Parameter(negative="", help="list the training tasks instead")] = False,
    json: AsJson = False,
) -> None:
    """List the attention mechanisms (abilities, order, paper), the models, the presets or the training tasks.

    **Examples:**

        longspan list
        longspan list --presets
        longspan list --tasks
        longspan list --models --json
    """
    if models + presets + tasks > 1:
        raise InvalidOption("give --models, --presets or --tasks: one of them")
    if tasks:
        task_rows = list_tasks()
        print_json(task_rows) if json else print_tasks(task_rows)
    elif models:
        from longspan.models import catalog, names

        rows = [catalog.describe_model(name) for name in names()]
        print_json(rows) if json else print_models(rows)
    elif presets:
        from longspan.models import catalog

        rows = catalog.list_presets()
        print_json(rows) if json else print_presets(rows)
    elif json:
        from longspan.attention import describe, names

        print_json([describe(name) for name in names()])
    else:
        _print_mechanisms(mechanism_table.rows())


def _print_mechanisms(rows: Sequence[Row]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True, min_width=max(len(row.name) for row in rows) + 2)
    table.add_column("can", no_wrap=True, min_width=max(len(row.can) for row in rows))
    table.add_column("order")
    table.add_column("paper")
    for survey_class, members in groupby(rows, key=lambda row: row.survey_class):
        table.add_row(f"[dim]{survey_class}[/dim]")
        for row in members:
            table.add_row(f"  {row.name}", row.can, row.order, row.paper)
    console = output()
    console.print(table)
    console.print("\nlongspan show NAME shows details; longspan list --models and --presets list more", style="dim")


def show(*name: str, lengths: Annotated[tuple[str, ...], Parameter(negative="")] = (), json: AsJson = False) -> None:
    """Show the details of a mechanism, model, preset or checkpoint, or the keys of a recipe.

    Mechanisms and models are shown with their options, presets with their parameter counts and their cost by length.
    `show task NAME` and `show train` list the keys of a recipe's [task] and [train] with type, default and help; `show
    tasks` lists the tasks, `show recipe NAME` prints a recipe that comes with longspan.

    **Examples:**

        longspan show window
        longspan show decoder
        longspan show gpt2
        longspan show sparse-enwik8 --lengths 4096,12288 --json
        longspan show ./all-MiniLM-L6-v2/
        longspan show HuggingFaceTB/SmolLM2-135M
        longspan show task classify
        longspan show train
        longspan show recipe minilm-sst2

    Parameters
    ----------
    name
        A name from `longspan list`, `longspan list --models` or `longspan list --presets`; a model: its folder or file,
        owner/name or name@revision in the local Hugging Face cache, package:NAME; or task NAME, tasks, train, recipe
        NAME, recipes.
    lengths
        For a preset: sequence lengths to show the cost at, such as 4096,12288 (default: the paper's and some more).
    """
    if not name:
        raise InvalidOption("give a name: of a mechanism, a model, a preset or a checkpoint, or task NAME or train")
    if name[0] in SHOWN:
        if lengths:
            raise InvalidOption(f"--lengths is for presets, and {name[0]} is none; leave it out")
        found = describe_recipe(name)
        return print_json(found) if json else print_shown(found)
    if len(name) > 1:
        raise InvalidOption(f"give one name; {name[1]!r} follows {name[0]!r}")
    row = _describe(name[0], tuple(number for text in lengths for number in whole_numbers(text, "--lengths")))
    if json:
        print_json(row)
    else:
        printers = {"attention": _print_mechanism, "model": print_model, "preset": print_preset}
        printers.get(row["kind"], print_checkpoint)(row)


def _describe(name: str, lengths: tuple[int, ...]) -> dict[str, Any]:
    from longspan import hub
    from longspan.hub import local_cache
    from longspan.hub.locate import PACKAGE
    from longspan.models import catalog

    named = name.startswith(PACKAGE) or local_cache.is_cached(name) or ("/" in name and local_cache.is_name(name))
    if name not in catalog.known() and (Path(name).exists() or named):
        if lengths:
            raise InvalidOption(f"--lengths is for presets, but {name} is a checkpoint; leave it out")
        return hub.describe(name)
    return catalog.describe(name, lengths)


def _print_mechanism(row: dict[str, Any]) -> None:
    console = output()
    console.print(f"{row['name']}: {row['summary']}", markup=False)
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_row("paper", row["paper"])
    facts.add_row("class", _survey_class(row))
    facts.add_row("order", row["order"])
    facts.add_row("can", ", ".join(key for key, able in row["supports"].items() if able))
    facts.add_row("cannot", ", ".join(key for key, able in row["supports"].items() if not able) or "–")
    for stream in row["streams"]:
        facts.add_row(f"reads {stream['name']}", stream["help"])
    console.print(facts)
    if row["options"]:
        options = Table("option", "type", "default", "limits", "help", box=None, pad_edge=False)
        for item in row["options"]:
            options.add_row(item["name"], item["type"], str(item["default"]), limits(item), item["help"])
        console.print()
        console.print(options)
    call = f'longspan.attention.build("{row["name"]}", heads=8, head_dim=64)'
    console.print(f"\nin Python: {call}", markup=False)


def _survey_class(row: dict[str, Any]) -> str:
    from longspan.attention.registry import SURVEY_CLASSES

    return ", ".join(SURVEY_CLASSES[key] for key in row["survey_class"] or ("",))
