"""Sections of the arena page: data, machine, and every cell with the command that repeats it."""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from longspan.arena.runs.cell import Record
from longspan.report.arena_numbers import STATE_NAMES, duration, percent, size, task_title
from longspan.report.page import Html, table, tag, text
from longspan.report.results import Results


def data_section(results: Results) -> Html:
    """The data manifest of each task; if cells differ, each different one."""
    parts = []
    for task in results.tasks:
        manifests = _distinct(r.data for r in results.accuracy_records if r.cell.task == task and r.data)
        for number, manifest in enumerate(manifests):
            more = f" ({number + 1} of {len(manifests)})" if len(manifests) > 1 else ""
            parts.append(tag("figure", tag("h3", task_title(task), more), _pairs(manifest)))
    if not parts:
        parts = [tag("p", "No data manifest was recorded.", css="quiet")]
    return tag("section", tag("h2", "Data"), tag("div", *parts, css="charts"))


def machine_section(results: Results) -> Html:
    machines = _distinct(r.machine for r in results.records if r.machine)
    parts = []
    for number, description in enumerate(machines):
        parts += [tag("h3", f"Machine {number + 1}")] if len(machines) > 1 else []
        parts.append(_pairs(description))
    if not parts:
        parts = [tag("p", "No machine was recorded.", css="quiet")]
    return tag("section", tag("h2", "Machine"), *parts)


def cells_section(results: Results) -> Html:
    """Every cell with its state, its options, and the command that repeats it."""
    rows = []
    for record in results.records:
        cell = record.cell
        state: str = STATE_NAMES.get(record.state, record.state)
        if record.state != "done":
            state = tag("span", f"{state}: {record.error or 'no reason recorded'}", css="bad")
        rows.append(
            [
                tag("code", cell.key),
                state,
                "–" if record.accuracy is None else percent(record.accuracy),
                "–" if record.steps is None else f"{record.steps:,}",
                "–" if record.seconds is None else duration(record.seconds),
                record.began or "–",
                _details(record),
            ]
        )
    head = ("cell", "state", "accuracy", "steps", "training", "started (UTC)", "to repeat it")
    arguments = results.grid.get("arguments", results.grid)
    whole_grid = (
        [tag("pre", grid_command(arguments))] if isinstance(arguments, Mapping) and "tasks" in arguments else []
    )
    note = (
        "Each cell's command writes its description to cell.json, runs it in its own process, and writes "
        "result.json. It trains for the recorded number of steps, even if the grid had a time budget, so that the same "
        "machine and versions give the same accuracy. Tasks that read files need LONGSPAN_DATA."
        + (" To repeat the whole grid:" if whole_grid else "")
    )
    return tag(
        "section",
        tag("h2", "Every cell, and how to repeat it"),
        tag("p", note, css="quiet"),
        *whole_grid,
        tag("details", tag("summary", f"{len(rows)} cells"), table(head, rows, numbers=(2, 3, 4))),
    )


def grid_command(arguments: Mapping[str, Any]) -> str:
    """The shell command that repeats the whole grid."""
    parts = ["longspan arena"]
    for name in ("tasks", "models", "setting", "seeds", "threads", "lengths"):
        value = arguments.get(name)
        if value:
            parts.append(
                f"--{name} {shlex.quote(','.join(map(str, value)) if isinstance(value, list) else str(value))}"
            )
    parts += ["--no-speed"] if "lengths" in arguments and not arguments["lengths"] else []
    parts += [f"--budget {arguments['budget']:g}s"] if isinstance(arguments.get("budget"), int | float) else []
    parts += ["--pretrain"] if arguments.get("pretrain") else []
    return " ".join([*parts, "--out FOLDER"])


def command(record: Record) -> str:
    """The shell command that repeats a cell; fields with default values are left out."""
    cell = record.cell
    if cell.kind == "accuracy" and record.steps is not None:
        cell = replace(cell, steps=record.steps, seconds=None)
    values = {
        field.name: getattr(cell, field.name)
        for field in fields(cell)
        if field.default is MISSING or getattr(cell, field.name) != field.default
    }
    line = shlex.quote(json.dumps(values))
    return f"echo {line} > cell.json; python -m longspan.arena.runs.process cell.json result.json"


def _details(record: Record) -> Html:
    content = [tag("pre", command(record))]
    if record.options:
        content.append(tag("pre", json.dumps(record.options, indent=1, default=str)))
    return tag("details", tag("summary", "command and options" if record.options else "command"), *content)


def _distinct(tables: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return list({json.dumps(table, sort_keys=True, default=str): table for table in tables}.values())


def _pairs(values: Mapping[str, Any]) -> Html:
    """A table of names and values; nested names are joined by dots."""
    return table(("", ""), [(tag("code", name), value) for name, value in _flat(values)])


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, Html]]:
    rows: list[tuple[str, Html]] = []
    for name, value in values.items():
        full_name = f"{before}{name}"
        shares = _shares(value)
        if shares:
            rows.append((full_name, _bars(shares)))
        elif isinstance(value, Mapping):
            rows += _flat(value, f"{full_name}.")
        elif isinstance(value, list | tuple):
            rows.append((full_name, text(", ".join(map(_short, value)) if value else "–")))
        else:
            in_bytes = (name in ("memory", "bytes") or before.startswith("caches")) and isinstance(value, int)
            rows.append((full_name, text(size(value) if in_bytes else _short(value))))
    return rows


def _short(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _shares(value: object) -> dict[str, float]:
    """Fractions that add up to 1, such as those of labels; empty for anything else."""
    if isinstance(value, list | tuple):
        value = {str(number): share for number, share in enumerate(value)}
    if not isinstance(value, Mapping) or not 2 <= len(value) <= 64:
        return {}
    if not all(
        isinstance(share, float | int) and not isinstance(share, bool) and 0 <= share <= 1 for share in value.values()
    ):
        return {}
    return {str(name): float(share) for name, share in value.items()} if abs(sum(value.values()) - 1) < 0.02 else {}


def _bars(shares: Mapping[str, float]) -> Html:
    most = max(shares.values())
    bars = [
        f'<i title="{text(name)}: {100 * share:.1f} %" style="height:{max(4.0, 100 * share / most):.0f}%"></i>'
        for name, share in shares.items()
    ]
    ends = f"{100 * min(shares.values()):.1f} to {100 * most:.1f} % each, {len(shares)} labels"
    return Html(f'<span class="shares">{"".join(bars)}</span> <small class="quiet">{ends}</small>')
