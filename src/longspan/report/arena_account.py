"""Of the arena's page: what was run, on what data and machine, and how to run any of it again."""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from longspan.arena.runs.cell import Record
from longspan.report.arena_numbers import ENDED, duration, percent, size, task_title
from longspan.report.page import Html, table, tag, text
from longspan.report.results import Results


def data(results: Results) -> Html:
    """What each task's data say of themselves, once for each that differs."""
    parts = []
    for task in results.tasks:
        known = _different(r.data for r in results.accuracy_records if r.cell.task == task and r.data)
        for number, notes in enumerate(known):
            more = f" ({number + 1} of {len(known)})" if len(known) > 1 else ""
            parts.append(tag("figure", tag("h3", task_title(task), more), _pairs(notes)))
    if not parts:
        parts = [tag("p", "No manifest of the data was recorded.", kind="quiet")]
    return tag("section", tag("h2", "Data"), tag("div", *parts, kind="charts"))


def machine(results: Results) -> Html:
    known = _different(r.machine for r in results.records if r.machine)
    parts = []
    for number, notes in enumerate(known):
        parts += [tag("h3", f"Machine {number + 1}")] if len(known) > 1 else []
        parts.append(_pairs(notes))
    if not parts:
        parts = [tag("p", "No machine was recorded.", kind="quiet")]
    return tag("section", tag("h2", "Machine"), *parts)


def repeat(results: Results) -> Html:
    """Every cell with its end, its options, and the command that runs it again."""
    rows = []
    for record in results.records:
        cell = record.cell
        ended = ENDED.get(record.state, record.state)
        why = record.error or "no reason was recorded"
        state = ended if record.state == "done" else tag("span", f"{ended}: {why}", kind="bad")
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
    head = ("cell", "state", "accuracy", "steps", "training", "began (UTC)", "to repeat it")
    arguments = results.grid.get("arguments", results.grid)
    whole = [tag("pre", grid_command(arguments))] if isinstance(arguments, Mapping) and "tasks" in arguments else []
    note = (
        "A cell runs in a process of its own from one line of JSON: the command writes that line, and the result into "
        "result.json. The number of steps is that of the record, also where it came of a budget of time, so that seed, "
        "machine and versions give the same accuracy again; tasks from files need LONGSPAN_DATA. First, the whole grid:"
        if whole
        else "result.json."
    )
    return tag(
        "section",
        tag("h2", "Every cell, and how to repeat it"),
        tag("p", note, kind="quiet"),
        *whole,
        tag("details", tag("summary", f"{len(rows)} cells"), table(head, rows, numbers=(2, 3, 4))),
    )


def grid_command(arguments: Mapping[str, Any]) -> str:
    """The shell's line that runs the whole grid again."""
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
    """The shell's line that runs a cell again; what is as by default is left out."""
    cell = record.cell
    if cell.kind == "accuracy" and record.steps is not None:
        cell = replace(cell, steps=record.steps, seconds=None)
    values = {
        each.name: getattr(cell, each.name)
        for each in fields(cell)
        if each.default is MISSING or getattr(cell, each.name) != each.default
    }
    line = shlex.quote(json.dumps(values))
    return f"echo {line} > cell.json; python -m longspan.arena.runs.process cell.json result.json"


def _details(record: Record) -> Html:
    inside = [tag("pre", command(record))]
    if record.options:
        inside.append(tag("pre", json.dumps(record.options, indent=1, default=str)))
    return tag("details", tag("summary", "command and options" if record.options else "command"), *inside)


def _different(some: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found = {json.dumps(each, sort_keys=True, default=str): each for each in some}
    return list(found.values())


def _pairs(values: Mapping[str, Any]) -> Html:
    """A table of names and values; what lies deeper has a name with dots."""
    return table(("", ""), [(tag("code", name), value) for name, value in _flat(values)])


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, Html]]:
    rows: list[tuple[str, Html]] = []
    for name, value in values.items():
        whole = f"{before}{name}"
        shares = _shares(value)
        if shares:
            rows.append((whole, _bars(shares)))
        elif isinstance(value, Mapping):
            rows += _flat(value, f"{whole}.")
        elif isinstance(value, list | tuple):
            rows.append((whole, text(", ".join(map(_short, value)) if value else "–")))
        else:
            known = (name in ("memory", "bytes") or before.startswith("caches")) and isinstance(value, int)
            rows.append((whole, text(size(value) if known else _short(value))))
    return rows


def _short(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _shares(value: object) -> dict[str, float]:
    """Parts of a whole, as of labels; nothing where it is not that."""
    if isinstance(value, list | tuple):
        value = {str(number): each for number, each in enumerate(value)}
    if not isinstance(value, Mapping) or not 2 <= len(value) <= 64:
        return {}
    if not all(
        isinstance(each, float | int) and not isinstance(each, bool) and 0 <= each <= 1 for each in value.values()
    ):
        return {}
    return {str(name): float(each) for name, each in value.items()} if abs(sum(value.values()) - 1) < 0.02 else {}


def _bars(shares: Mapping[str, float]) -> Html:
    most = max(shares.values())
    bars = [
        f'<i title="{text(name)}: {100 * share:.1f} %" style="height:{max(4.0, 100 * share / most):.0f}%"></i>'
        for name, share in shares.items()
    ]
    ends = f"{100 * min(shares.values()):.1f} to {100 * most:.1f} % each, {len(shares)} labels"
    return Html(f'<span class="shares">{"".join(bars)}</span> <small class="quiet">{ends}</small>')
