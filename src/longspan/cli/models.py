"""How `longspan list` and `longspan show` print models, presets and checkpoints."""

from itertools import groupby
from typing import Any

from rich.markup import escape
from rich.table import Table

from longspan.cli.tables import limits, output, short_bytes, short_number


def print_models(rows: list[dict[str, Any]]) -> None:
    """Print one line per model."""
    table = Table("name", "summary", "paper", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], escape(row["summary"]), row["paper"])
    output().print(table)


def print_presets(rows: list[dict[str, Any]]) -> None:
    """Print one line per preset, with the parameter count its paper prints."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)  # five columns within 80 characters
    table.add_column("name", no_wrap=True, min_width=max(len(row["name"]) for row in rows))
    table.add_column("model", no_wrap=True)
    table.add_column("params", no_wrap=True, justify="right")
    table.add_column("length", no_wrap=True, justify="right")
    table.add_column("paper", no_wrap=True)
    for row in rows:
        length = str(max(row["lengths"])) if row["lengths"] else ""
        paper = row["paper"].replace(" et al.", "")  # to keep lines within 80 characters
        table.add_row(row["name"], row["model"], row["printed_parameters"], length, paper)
    output().print(table)


def print_model(row: dict[str, Any]) -> None:
    """Print a model with its options."""
    console = output()
    console.print(f"{row['name']}: {row['summary']}", markup=False)
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_row("paper", row["paper"])
    facts.add_row("decodes", "yes" if row["decodes"] else "no")
    if row["reads_source"]:
        facts.add_row("reads", "a source and a target")
    if row["presets"]:
        facts.add_row("presets", ", ".join(row["presets"]))
    console.print(facts)
    options = Table("option", "default", "limits", "help", box=None, pad_edge=False)
    for item in row["options"]:
        options.add_row(item["name"], _plain(item["default"]), limits(item), item["help"])
    console.print()
    console.print(options)
    console.print(f'\nin Python: longspan.models.build("{row["name"]}", …)', markup=False)


def print_preset(row: dict[str, Any]) -> None:
    """Print a preset: its parameters beside the paper's number, its cost, and how to build it."""
    console = output()
    console.print(f"{row['name']}: {row['model']} of {row['paper']}", markup=False)
    if row["remarks"]:
        console.print(row["remarks"], markup=False)
    weights = Table("parameters", box=None, pad_edge=False)
    weights.add_column("", justify="right")
    for component, number in row["parts"].items():
        weights.add_row(f"  {component}", f"{number:,}")
    printed = f"   the paper says {row['printed_parameters']}" if row["printed_parameters"] else ""
    weights.add_row("  total", f"{row['parameters']:,}", printed)
    console.print()
    console.print(weights)
    _print_costs(row)
    console.print()
    if row["options"]:
        options = Table("option", "value", box=None, pad_edge=False)
        for name, value in row["options"].items():
            options.add_row(f"  {name}", _plain(value))
        console.print(options)
    else:
        console.print(f"all options are the defaults of {row['model']}", markup=False)
    console.print(f"\nin Python: {row['python']}", markup=False)


def _print_costs(row: dict[str, Any]) -> None:
    """The cost of one sequence by its length, and the memory of the state after it where that is known."""
    console, states = output(), {item["length"]: item["bytes"] for item in row.get("state_bytes", ())}
    if row["costs"]:
        costs = Table(box=None, pad_edge=False)
        for title in (
            "length",
            "FLOPs, forward",
            "in attention",
            "activations",
            *(["decoding state"] if states else []),
        ):
            costs.add_column(title, justify="right")
        for item in row["costs"]:
            share = f"{100 * item['attention_flops'] / item['flops']:.0f} %" if item["attention_flops"] else ""
            note = "  the paper's length" if item["length"] in row.get("printed_lengths", ()) else ""
            cells = [str(item["length"]), short_number(item["flops"]), share, short_bytes(item["activation_bytes"])]
            if states:
                cells.append(short_bytes(states[item["length"]]) if item["length"] in states else "")
            costs.add_row(*cells, *([note] if note else []))
        console.print()
        console.print(costs)
        console.print("for one sequence; activations saved for the backward pass, in float32", style="dim")
    for note in row["cost_notes"]:
        console.print(note, style="dim", markup=False)


def print_checkpoint(row: dict[str, Any]) -> None:
    """Print a checkpoint: its family, weights, heads and tokenizer, and how to load it."""
    console = output()
    kind = row["architecture"] or row["model"]
    title = f"{row['path']}: {kind}, {row['parameters']:,} parameters in {row['dtype']}"
    console.print(title, markup=False, soft_wrap=True)
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_row("family", f"{row['family'] or 'longspan'}, here a model {row['model']!r}")
    facts.add_row("attention", escape(_runs([_plain_attention(item) for item in row["attention"]])) or "–")
    facts.add_row("task heads", ", ".join(row["tasks"]) or "–")
    if row["labels"]:
        facts.add_row("labels", escape(", ".join(row["labels"])))
    facts.add_row("weights", short_bytes(row["weight_bytes"]))
    facts.add_row("max length", "any" if row["max_length"] is None else f"{row['max_length']} tokens")
    tokenizer = row["tokenizer"]
    if tokenizer is None:
        facts.add_row("tokenizer", "none")
    else:
        special = ", ".join(f"{role} {item['token']} {item['id']}" for role, item in tokenizer["special"].items())
        facts.add_row("tokenizer", escape(f"{tokenizer['kind']}, {tokenizer['size']:,} tokens; {special}"))
    if row["unused"]:
        facts.add_row("not used", escape(", ".join(row["unused"])))
    console.print(facts)
    weights = Table("parameters", box=None, pad_edge=False)
    weights.add_column("", justify="right")
    for component, number in row["parts"].items():
        weights.add_row(f"  {component}", f"{number:,}")
    options = Table("option", "value", box=None, pad_edge=False)
    for name, value in row["options"].items():
        options.add_row(f"  {name}", escape(_plain(value)))
    for table in (weights, options):
        console.print()
        console.print(table)
    _print_costs(row)
    console.print(f"\nin Python: longspan.hub.load({row['path']!r})", markup=False, soft_wrap=True)


def _plain_attention(layer: dict[str, Any]) -> str:
    kind = _plain({"name": layer["name"], **layer["options"]})
    cross = " reading the encoder" if layer["layer"].endswith("cross") else ""
    return f"{kind}{', causal' if layer['causal'] else ''}{cross}"


def _runs(texts: list[str]) -> str:
    """Texts in lines, with equal neighbours once and a count."""
    counted = [(text, len(list(same))) for text, same in groupby(texts)]
    return "\n".join(text if times == 1 else f"{times} × {text}" for text, times in counted)


def _plain(value: Any) -> str:
    """A value as a configuration would write it; equal values of neighbouring layers once, with a count."""
    if isinstance(value, dict):
        inside = ", ".join(f"{key}={_plain(item)}" for key, item in value.items() if key != "name")
        return f"{value.get('name', '')}({inside})" if inside else str(value.get("name", ""))
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return _runs([_plain(item) for item in value])
    if isinstance(value, list):
        return f"({', '.join(map(str, value))})"
    return str(value)
