"""`longspan list` and `longspan show`."""

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from longspan.cli.models import print_checkpoint, print_model, print_models, print_preset, print_presets
from longspan.cli.tables import limits
from longspan.errors import InvalidOption

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="print JSON instead of a table")]

FAMILIES = {
    "FP": "fixed pattern",
    "M": "memory",
    "LP": "learned pattern",
    "LR": "low rank",
    "KR": "kernel",
    "RC": "recurrence",
}


def list_names(
    *,
    models: Annotated[bool, Parameter(negative="", help="list the models instead")] = False,
    presets: Annotated[bool, Parameter(negative="", help="list the presets: models with a paper's sizes")] = False,
    json: AsJson = False,
) -> None:
    """List the attention mechanisms (paper, family, order, and what each can do), the models or the presets.

    **Examples:**

        longspan list
        longspan list --presets
        longspan list --models --json
    """
    if models and presets:
        raise InvalidOption("--models and --presets are two lists; give one of them")
    if models:
        from longspan.models import catalog, names

        rows = [catalog.describe_model(name) for name in names()]
        _print_json(rows) if json else print_models(rows)
    elif presets:
        from longspan.models import catalog

        rows = catalog.list_presets()
        _print_json(rows) if json else print_presets(rows)
    else:
        from longspan.attention import describe, names

        rows = [describe(name) for name in names()]
        _print_json(rows) if json else _print_mechanisms(rows)


def _print_mechanisms(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True, min_width=max(len(row["name"]) for row in rows) + 2)
    table.add_column("can", no_wrap=True, min_width=max(len(_abilities(row)) for row in rows))
    table.add_column("order", no_wrap=True)  # these two are cut short on a narrow screen; --json has them whole
    table.add_column("paper", no_wrap=True)
    families = {"": "dense", **FAMILIES}
    for family in dict.fromkeys(_first_family(row) for row in rows):
        table.add_row(f"[dim]{families[family]}[/dim]")
        for row in rows:
            if _first_family(row) == family:
                table.add_row(f"  {row['name']}", _abilities(row), row["order"], row["paper"])
    console = Console()
    console.print(table)
    console.print("\nlongspan list --models and --presets list the others; longspan show NAME shows one", style="dim")


def show(
    name: str, /, *, length: Annotated[tuple[int, ...], Parameter(negative="")] = (), json: AsJson = False
) -> None:
    """Show a mechanism or a model with its options, a preset with its parameters and what it costs by length, or a
    checkpoint with what it is.

    **Examples:**

        longspan show window
        longspan show decoder
        longspan show gpt2
        longspan show sparse-enwik8 --length 4096 --length 12288 --json
        longspan show ./all-MiniLM-L6-v2/

    Parameters
    ----------
    name
        A name from `longspan list`, `longspan list --models` or `longspan list --presets`; or the folder of a model.
    length
        Of a preset: tokens of the text that is costed; may be given several times. The paper's, and some more, unless
        given.
    """
    row = _describe(name, length)
    if json:
        _print_json(row)
    else:
        printers = {"attention": _print_mechanism, "model": print_model, "preset": print_preset}
        printers.get(row["kind"], print_checkpoint)(row)


def _describe(name: str, length: tuple[int, ...]) -> dict[str, Any]:
    from longspan import hub
    from longspan.hub.locate import PACKAGE
    from longspan.models import catalog

    if name not in catalog.known() and (Path(name).exists() or name.startswith(PACKAGE)):
        if length:
            raise InvalidOption("--length is for presets, and this is a checkpoint; leave it out")
        return hub.describe(name)
    return catalog.describe(name, length)


def _print_mechanism(row: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(f"{row['name']}: {row['summary']}", markup=False)
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_row("paper", row["paper"])
    facts.add_row("family", _family(row))
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


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _first_family(row: dict[str, Any]) -> str:
    return row["family"][0] if row["family"] else ""


def _abilities(row: dict[str, Any]) -> str:
    words = {"causal": "causal", "cross": "cross", "streaming": "decodes"}
    return ", ".join(word for key, word in words.items() if row["supports"][key])


def _family(row: dict[str, Any]) -> str:
    return ", ".join(FAMILIES[key] for key in row["family"]) or "dense"
