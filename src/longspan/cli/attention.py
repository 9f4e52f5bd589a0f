"""`longspan list` and `longspan show`."""

import json
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Column, Table

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="print JSON instead of a table")]

FAMILIES = {
    "FP": "fixed pattern",
    "M": "memory",
    "LP": "learned pattern",
    "LR": "low rank",
    "KR": "kernel",
    "RC": "recurrence",
}


def list_mechanisms(*, json: AsJson = False) -> None:
    """List the attention mechanisms: paper, family, order, and what each can do.

    **Examples:**

        longspan list
        longspan list --json
    """
    from longspan.attention import describe, names

    rows = [describe(name) for name in names()]
    if json:
        _print_json(rows)
        return
    name = Column("name", no_wrap=True, min_width=max(len(row["name"]) for row in rows))  # never cut short: it is typed
    table = Table(name, "paper", "family", "order", "causal", "cross", "padding", "decodes", box=None, pad_edge=False)
    for row in rows:
        can = row["supports"]
        marks = (_mark(can[key]) for key in ("causal", "cross", "key_mask", "streaming"))
        table.add_row(row["name"], row["paper"], _family(row), row["order"], *marks)
    Console().print(table)


def show(name: str, /, *, json: AsJson = False) -> None:
    """Show one mechanism: what it is, what it can do, and its options with their limits.

    **Examples:**

        longspan show window
        longspan show softmax --json

    Parameters
    ----------
    name
        A name from `longspan list`.
    """
    from longspan.attention import describe

    row = describe(name)
    if json:
        _print_json(row)
        return
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
            options.add_row(item["name"], item["type"], str(item["default"]), _limits(item), item["help"])
        console.print()
        console.print(options)
    call = f'longspan.attention.build("{row["name"]}", heads=8, head_dim=64)'
    console.print(f"\nin Python: {call}", markup=False)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _mark(able: bool) -> str:
    return "yes" if able else "–"


def _family(row: dict[str, Any]) -> str:
    return ", ".join(FAMILIES[key] for key in row["family"]) or "dense"


def _limits(item: dict[str, Any]) -> str:
    if item["choices"]:
        return ", ".join(item["choices"])
    bounds = [f"{word} {item[key]:g}" for word, key in (("≥", "low"), ("≤", "high")) if item[key] is not None]
    return " ".join(bounds)
