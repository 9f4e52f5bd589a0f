"""Sections of the arena page: speed and memory at each length, and energy."""

import re
from collections.abc import Callable
from statistics import fmean

from longspan.arena.runs.cell import Record
from longspan.arena.runs.efficiency import FUSED, NAIVE, conditions
from longspan.measure.carbon import Assumptions
from longspan.report.arena_accuracy import failure_list, model_name, with_tip
from longspan.report.arena_numbers import STATE_NAMES, name_and_kind, rate, size, times, watt_hours
from longspan.report.charts import DASHES, ChartAxis, ChartLine, curves, legend
from longspan.report.page import Html, table, tag, text
from longspan.report.palette import kind, title
from longspan.report.results import Results

SECONDS = re.compile(r"[\d.e+]+ s of")
EFFICIENCY = {"speed": "Steps per second over length", "memory": "Memory over length"}

VALUES: dict[str, Callable[[Record], float | None]] = {
    "speed": lambda record: record.steps_per_second,
    "memory": lambda record: record.memory,
}


def _value(record: Record | None, quantity: str) -> float | None:
    return VALUES[quantity](record) if record is not None and record.state == "done" else None


def efficiency_lines(results: Results, quantity: str) -> list[ChartLine]:
    """Steps per second, or memory in MiB, over the length."""
    lines, seen = [], dict[str, int]()
    for model in results.models:
        points, tips = [], []
        for length in results.lengths:
            value = _value(results.speed(model, length), quantity)
            if value:
                points.append((float(length), value if quantity == "speed" else value / 2**20))
                tips.append(f"{rate(value) if quantity == 'speed' else size(value)} at length {length:,}")
        if points:
            dash = DASHES[seen.get(kind(model), 0) % len(DASHES)]
            lines.append(ChartLine(title(model), kind(model), points, tips, dash))
            seen[kind(model)] = seen.get(kind(model), 0) + 1
    return lines


def axes(quantity: str) -> tuple[ChartAxis, ChartAxis]:
    across = ChartAxis(
        "length", lambda value: f"{value / 1024:g}K" if value % 1024 == 0 else f"{value:g}", factors=True
    )
    if quantity == "speed":
        return across, ChartAxis("steps per second", factors=True)
    return across, ChartAxis("memory", lambda value: size(value * 2**20), factors=True, halves=True, left=62)


def efficiency_chart(results: Results, quantity: str) -> Html | None:
    """None if no model was measured at two lengths."""
    lines = efficiency_lines(results, quantity)
    if not any(len(line.points) > 1 for line in lines):
        return None
    return curves(lines, *axes(quantity), EFFICIENCY[quantity])


def efficiency_section(results: Results) -> Html:
    if not results.speed_records:
        note = "This run did not measure speed and memory by length."
        return tag("section", tag("h2", "Efficiency"), tag("p", note, css="quiet"))
    naive, fused = (base if base in results.models else None for base in (NAIVE, FUSED))
    charts = []
    for quantity, heading in EFFICIENCY.items():
        if (chart := efficiency_chart(results, quantity)) is not None:
            charts.append(tag("figure", tag("h3", heading), chart))
    references = [
        f"{title(base)} ({how})" for base, how in ((naive, "n×n weights in memory"), (fused, "fused kernel")) if base
    ]
    ways = dict.fromkeys(r.memory_by for r in results.speed_records if r.memory_by)
    notes = [
        "A training step (forward, backward, update) at each length. "
        + (
            f"Ratios are to {' and to '.join(references)}."
            if references
            else "There are no ratios, because no dense baseline was measured."
        ),
        f"Memory is the peak above what the process used before the step ({', '.join(ways)})." if ways else "",
    ]
    return tag(
        "section",
        tag("h2", "Efficiency"),
        tag("p", " ".join(notes), css="quiet"),
        legend([kind(r.cell.model) for r in results.speed_records]),
        tag("div", *charts, css="charts"),
        tag("h3", "Speed: more is better"),
        _table(results, "speed", naive, fused),
        tag("h3", "Memory: less is better"),
        _table(results, "memory", naive, fused),
        failure_list([record for record in results.speed_records if record.state != "done"]),
    )


def _table(results: Results, quantity: str, naive: str | None, fused: str | None) -> Html:
    most = max(
        (ratio for m in results.models for n in results.lengths if (ratio := _ratio(results, quantity, m, naive, n))),
        default=1.0,
    )
    rows = []
    for model in results.models:
        if any(record.cell.model == model for record in results.speed_records):
            cells = [_cell(results, quantity, model, length, naive, fused, most) for length in results.lengths]
            rows.append([model_name(results, model), *cells])
    return table(["model", *(f"{length:,}" for length in results.lengths)], rows, numbers=range(1, 99))


def _ratio(results: Results, quantity: str, model: str, base: str | None, length: int) -> float | None:
    """None unless both were measured, under the same conditions."""
    record, reference = results.speed(model, length), results.speed(base, length) if base else None
    one, other = _value(record, quantity), _value(reference, quantity)
    if record is None or reference is None or not one or not other:
        return None
    return one / other if conditions(record) == conditions(reference) else None


def _cell(
    results: Results, quantity: str, model: str, length: int, naive: str | None, fused: str | None, most: float
) -> Html:
    """The first number is the ratio to the dense model with n×n weights, if that was measured."""
    record = results.speed(model, length)
    if record is None:
        return Html("–")
    value = _value(record, quantity)
    if value is None:
        reason = record.error or "no reason recorded"
        css = "bad" if record.state != "done" else "quiet"
        return with_tip(STATE_NAMES.get(record.state, "not measured"), reason, css)
    absolute = rate(value) if quantity == "speed" else size(value)
    to_naive, to_fused = (_ratio(results, quantity, model, base, length) for base in (naive, fused))
    tip = [name_and_kind(model), f"length {length:,}: {absolute}"]
    tip += [f"{times(to_naive)} {title(naive)}"] if naive and to_naive else []
    tip += [f"{times(to_fused)} {title(fused)}"] if fused and to_fused else []
    rest = ([f"{times(to_fused)} fused"] if to_fused else []) + [absolute]
    first = (times(to_naive) if to_naive else "–") if naive else absolute
    width = 100 * to_naive / most if to_naive else 0.0
    return Html(
        f'<div class="barred k-{kind(model)}">{with_tip(first, chr(10).join(tip))}'
        f'<br><small class="quiet">{text(" · ".join(rest))}</small><u style="width:{width:.1f}%"></u></div>'
    )


def energy_section(results: Results) -> Html:
    """Energy of all cells by model, and whether it was measured or modelled."""
    known = [r for r in results.records if isinstance(r.energy.get("joules"), (int, float))]
    if not known:
        note = "No energy was recorded."
        return tag("section", tag("h2", "Energy"), tag("p", note, css="quiet"))
    totals = {m: [float(r.energy["joules"]) for r in known if r.cell.model == m] for m in results.models}
    totals = {model: values for model, values in totals.items() if values}
    most = max(sum(values) for values in totals.values())
    rows = []
    for model, values in totals.items():
        ways = dict.fromkeys(_way(r) for r in known if r.cell.model == model)
        share = 100 * sum(values) / most if most else 0.0
        bar = Html(f'<div class="bar k-{kind(model)}"><u style="width:{share:.1f}%"></u></div>')
        per_cell = with_tip(watt_hours(fmean(values)), f"{fmean(values):,.0f} J on average over {len(values)} cells")
        rows.append([model_name(results, model), len(values), watt_hours(sum(values)), per_cell, bar, ", ".join(ways)])
    # A modelled energy names the seconds of its cell; without them only few different texts are left.
    ways = dict.fromkeys(SECONDS.sub("time of", str(r.energy.get("by", "not recorded"))) for r in known)
    whole = sum(sum(values) for values in totals.values())
    head = ("model", "cells", "total", "per cell", "", "source")
    lacking = len(results.records) - len(known)
    assumed = Assumptions()
    note = (
        f"{watt_hours(whole)} in total, {1000 * assumed.kilograms(whole):.3g} g CO2e with PUE {assumed.pue:.3g} and "
        f"{assumed.intensity:.3g} kg per kWh. Source: {'; '.join(ways)}."
    )
    if lacking:
        note += f" {lacking} {'cell has' if lacking == 1 else 'cells have'} no energy recorded."
    return tag("section", tag("h2", "Energy"), tag("p", note, css="quiet"), table(head, rows, numbers=(1, 2, 3)))


def _way(record: Record) -> str:
    by = str(record.energy.get("by", ""))
    return "modelled" if "modelled" in by else "measured" if by else "not recorded"
