"""The table of `longspan heal`: lines for the terminal, and a page."""

from collections.abc import Mapping, Sequence
from typing import Any

from longspan.adapt.heal.table import HealTable, Measured
from longspan.report import charts, palette
from longspan.report.charts import DASHES, ChartAxis, ChartLine, curves
from longspan.report.page import Html, page, table, tag
from longspan.report.theme import SCRIPT, STYLE

MODELS = ("teacher", "swapped", "healed")
LINES = {"teacher": ("dense", DASHES[1]), "swapped": ("fixed-pattern", DASHES[2]), "healed": ("fixed-pattern", "")}


def rows(result: HealTable) -> list[list[str]]:
    """The table: a row for each measure, with the three models beside each other."""
    models = [result.models[name] for name in MODELS]
    lines = [["loss", *(_number(model.loss) for model in models)]]
    if result.stage1 is not None:
        lines.append(["loss after stage 1", "", "", _number(result.stage1)])
    for index in range(len(models[0].blocks)):
        first = max(1, index * result.block)
        lines.append([f"loss of tokens from {first} on", *(_number(model.blocks[index]) for model in models)])
    if any(model.window_off is not None for model in models):
        lines.append(["loss, window off", *(_number(model.window_off) for model in models)])
        lines.append(["loss, linear part off", *(_number(model.linear_off) for model in models)])
    lines += _copies(models, result.copies)
    lines += _recall(models)
    lines += _decoding(models)
    return lines


def heal_page(result: HealTable, record: Mapping[str, Any]) -> str:
    """The page in the output folder."""
    spent = ", ".join(
        f"stage {stage}: {record['tokens'][stage]:,} tokens in {seconds / 60:.1f} minutes"
        for stage, seconds in record["seconds"].items()
    )
    parts = [
        tag("h1", "Healed model"),
        tag("p", summary(result), css="lede"),
        *([tag("p", f"Verdict: {verdict(result)}.", css="lede")] if verdict(result) else []),
        tag("p", f"{record['folder']}, taught by {record['teacher']}. {spent}.", css="quiet"),
    ]
    notes = [note for note in (*result.notes, energy_line(record)) if note]
    if notes:
        parts.append(tag("ul", *(tag("li", note) for note in notes)))
    if len(result.models["healed"].blocks) > 1:
        parts.append(tag("figure", tag("h3", "Loss by position"), _chart(result)))
    parts.append(table(["", *MODELS], rows(result), numbers=(1, 2, 3)))
    return page("Healed model", *parts, style=charts.STYLE + palette.style() + STYLE, script=SCRIPT)


def summary(result: HealTable) -> str:
    """What swapping cost and what healing got back."""
    teacher, swapped, healed = (result.models[name].loss for name in MODELS)
    cost, left = swapped - teacher, healed - teacher
    said = f"Loss {healed:.3f}, {left:+.3f} against the teacher; swapped it was {cost:+.3f}."
    return f"{said} Healing got back {1 - left / cost:.0%} of it." if cost > 0 and 0 < left < cost else said


def _chart(result: HealTable) -> Html:
    lines = []
    for name in MODELS:
        kind, dash = LINES[name]
        borders = [max(1, result.block * index) for index in range(len(result.models[name].blocks))]
        points = [(float(at + result.block / 2), loss) for at, loss in zip(borders, result.models[name].blocks)]
        tips = [f"{loss:.3f} from {at} on" for at, loss in zip(borders, result.models[name].blocks)]
        lines.append(ChartLine(name, kind, points, tips, dash))
    up = ChartAxis("nats a token", lambda value: f"{value:.3g}", left=52)
    return curves(lines, ChartAxis("position"), up, "Loss by position", width=620, height=300)


def verdict(result: HealTable) -> str:
    """The last line; empty if the model has no hybrid attention."""
    return "" if result.verdict is None else result.verdict.sentence


def _copies(models: Sequence[Measured], count: int) -> list[list[str]]:
    if not count:
        return []
    lines = [[f"loss of {count} pairs last seen beyond the window", *(_number(model.copied) for model in models)]]
    if any(model.copied_linear_off is not None for model in models):
        lines.append(["the same, linear part off", *(_number(model.copied_linear_off) for model in models)])
    return lines


def energy_line(record: Mapping[str, Any]) -> str:
    """The energy of training and its CO2; empty if unknown."""
    energy = record.get("energy") or {}
    if energy.get("joules") is None:
        return ""
    return (
        f"energy of training: {energy['joules'] / 1000:.3g} kJ ({energy['by']}), {1000 * energy['kg_co2e']:.2g} g CO2e"
    )


def _recall(models: Sequence[Measured]) -> list[list[str]]:
    lines = []
    known = next((model.recall for model in models if model.recall is not None), None)
    for index, cell in enumerate(() if known is None else known.cells):
        if cell.kind == "pairs" and cell.count:
            name = f"recall at {cell.at:g} windows (chance {known.chance:.0%})" if known is not None else ""
            lines.append([name, *("" if m.recall is None else f"{m.recall.cells[index].share:.0%}" for m in models)])
    beyond = [None if model.recall is None else model.recall.beyond_window() for model in models]
    if any(cell is not None for cell in beyond):
        shown = ["" if c is None else f"{c.hits} of {c.count}{' (at chance)' if c.at_chance else ''}" for c in beyond]
        lines.append(["recall beyond the window, all", *shown])
    return lines


def _decoding(models: Sequence[Measured]) -> list[list[str]]:
    points = [{} if m.decoding is None else {point.length: point for point in m.decoding.points} for m in models]
    lines = []
    for length in sorted({length for each in points for length in each}):
        at = [each.get(length) for each in points]
        lines.append([f"tokens/s after {length}", *("" if p is None else f"{1000 / p.milliseconds:.0f}" for p in at)])
        lines.append([f"state after {length}", *("" if p is None else f"{p.state_bytes / 1e6:.2f} MB" for p in at)])
    return lines


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


__all__ = ["energy_line", "heal_page", "rows", "summary", "verdict"]
