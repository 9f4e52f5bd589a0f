"""Of the arena's page: speed and memory at each length, and energy."""

import re
from collections.abc import Callable
from statistics import fmean

from longspan.arena.runs.cell import Record
from longspan.arena.runs.efficiency import FUSED, NAIVE
from longspan.report.arena_accuracy import model_name, reasons_of, said
from longspan.report.arena_numbers import ENDED, model_said, rate, size, times, watt_hours
from longspan.report.charts import DASHES, ChartAxis, ChartLine, curves, legend
from longspan.report.page import Html, table, tag, text
from longspan.report.palette import kind, title
from longspan.report.results import Results, alike

SECONDS = re.compile(r"[\d.e+]+ s of")

VALUES: dict[str, Callable[[Record], float | None]] = {
    "speed": lambda record: record.steps_per_second,
    "memory": lambda record: record.memory,
}


def _value(record: Record | None, what: str) -> float | None:
    return VALUES[what](record) if record is not None and record.state == "done" else None


def speed_lines(results: Results, what: str) -> list[ChartLine]:
    """Steps per second, or memory, over the length."""
    found, seen = [], dict[str, int]()
    for model in results.models:
        points, tips = [], []
        for length in results.lengths:
            value = _value(results.speed(model, length), what)
            if value:
                points.append((float(length), value if what == "speed" else value / 2**20))
                tips.append(f"{rate(value) if what == 'speed' else size(value)} at length {length:,}")
        if points:
            dash = DASHES[seen.get(kind(model), 0) % len(DASHES)]
            found.append(ChartLine(title(model), kind(model), points, tips, dash))
            seen[kind(model)] = seen.get(kind(model), 0) + 1
    return found


def axes(what: str) -> tuple[ChartAxis, ChartAxis]:
    across = ChartAxis(
        "length", lambda value: f"{value / 1024:g}K" if value % 1024 == 0 else f"{value:g}", factors=True
    )
    if what == "speed":
        return across, ChartAxis("steps per second", factors=True)
    return across, ChartAxis("memory", lambda value: size(value * 2**20), factors=True, halves=True, left=62)


def efficiency(results: Results) -> Html:
    if not results.speed_records:
        note = "This run has no cells that measure speed and memory by length."
        return tag("section", tag("h2", "Efficiency"), tag("p", note, kind="quiet"))
    naive, fused = (base if base in results.models else None for base in (NAIVE, FUSED))
    charts = []
    for what, named in (("speed", "Steps per second over length"), ("memory", "Memory over length")):
        lines = speed_lines(results, what)
        if lines and any(len(line.points) > 1 for line in lines):
            charts.append(tag("figure", tag("h3", named), curves(lines, *axes(what), named)))
    against = [
        f"{title(base)} ({how})"
        for base, how in ((naive, "its n×n weights in memory"), (fused, "fused kernel"))
        if base
    ]
    ways = dict.fromkeys(r.memory_by for r in results.speed_records if r.memory_by)
    notes = [
        "A training step (forward, backward, update) at each length. "
        + (
            f"Ratios are to {' and to '.join(against)}." if against else "No dense baseline was measured, so no ratios."
        ),
        f"Memory is the peak beyond what the process had before ({', '.join(ways)})." if ways else "",
    ]
    return tag(
        "section",
        tag("h2", "Efficiency"),
        tag("p", " ".join(notes), kind="quiet"),
        legend([kind(r.cell.model) for r in results.speed_records]),
        tag("div", *charts, kind="charts"),
        tag("h3", "Speed: more is better"),
        _table(results, "speed", naive, fused),
        tag("h3", "Memory: less is better"),
        _table(results, "memory", naive, fused),
        reasons_of([record for record in results.speed_records if record.state != "done"]),
    )


def _table(results: Results, what: str, naive: str | None, fused: str | None) -> Html:
    most = max(
        (ratio for m in results.models for n in results.lengths if (ratio := _ratio(results, what, m, naive, n))),
        default=1.0,
    )
    rows = []
    for model in results.models:
        if any(record.cell.model == model for record in results.speed_records):
            cells = [_cell(results, what, model, length, naive, fused, most) for length in results.lengths]
            rows.append([model_name(results, model), *cells])
    # The first figure of a cell is the ratio to the dense one as it is written.
    return table(["model", *(f"{length:,}" for length in results.lengths)], rows, numbers=range(1, 99))


def _ratio(results: Results, what: str, model: str, base: str | None, length: int) -> float | None:
    record, reference = results.speed(model, length), results.speed(base, length) if base else None
    one, other = _value(record, what), _value(reference, what)
    if record is None or reference is None or not one or not other:
        return None
    return one / other if alike(record, reference) else None


def _cell(
    results: Results, what: str, model: str, length: int, naive: str | None, fused: str | None, most: float
) -> Html:
    record = results.speed(model, length)
    if record is None:
        return Html("–")
    value = _value(record, what)
    if value is None:
        reason = record.error or "no reason was recorded"
        return said(ENDED.get(record.state, "not measured"), reason, "bad" if record.state != "done" else "quiet")
    absolute = rate(value) if what == "speed" else size(value)
    to_naive, to_fused = (_ratio(results, what, model, base, length) for base in (naive, fused))
    tip = [model_said(model), f"length {length:,}: {absolute}"]
    tip += [f"{times(to_naive)} {title(naive)}"] if naive and to_naive else []
    tip += [f"{times(to_fused)} {title(fused)}"] if fused and to_fused else []
    rest = ([f"{times(to_fused)} fused"] if to_fused else []) + [absolute]
    first = (times(to_naive) if to_naive else "–") if naive else absolute
    width = 100 * to_naive / most if to_naive else 0.0
    return Html(
        f'<div class="barred k-{kind(model)}">{said(first, chr(10).join(tip))}'
        f'<br><small class="quiet">{text(" · ".join(rest))}</small><u style="width:{width:.1f}%"></u></div>'
    )


def energy(results: Results) -> Html:
    """Of all cells, by model: how much, and whether it was measured."""
    known = [r for r in results.records if isinstance(r.energy.get("joules"), (int, float))]
    if not known:
        note = "No energy was recorded."
        return tag("section", tag("h2", "Energy"), tag("p", note, kind="quiet"))
    totals = {m: [float(r.energy["joules"]) for r in known if r.cell.model == m] for m in results.models}
    totals = {model: values for model, values in totals.items() if values}
    most = max(sum(values) for values in totals.values())
    rows = []
    for model, values in totals.items():
        ways = dict.fromkeys(_way(r) for r in known if r.cell.model == model)
        share = 100 * sum(values) / most if most else 0.0
        bar = Html(f'<div class="bar k-{kind(model)}"><u style="width:{share:.1f}%"></u></div>')
        per_cell = said(watt_hours(fmean(values)), f"{fmean(values):,.0f} J on the average of {len(values)} cells")
        rows.append([model_name(results, model), len(values), watt_hours(sum(values)), per_cell, bar, ", ".join(ways)])
    # Of models of energy each cell says its own seconds; the ways are few.
    ways = dict.fromkeys(SECONDS.sub("time of", str(r.energy.get("by", "not said how"))) for r in known)
    whole = sum(sum(values) for values in totals.values())
    head = ("model", "cells", "in all", "per cell", "", "how")
    lacking = len(results.records) - len(known)
    note = f"{watt_hours(whole)} in all. How: {'; '.join(ways)}." + (f" {lacking} cells have none." if lacking else "")
    made = table(head, rows, numbers=(1, 2, 3))
    return tag("section", tag("h2", "Energy"), tag("p", note, kind="quiet"), made)


def _way(record: Record) -> str:
    by = str(record.energy.get("by", ""))
    return "modelled" if "modelled" in by else "measured" if by else "not said"
