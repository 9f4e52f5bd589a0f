"""The page of `longspan profile`: charts of time and memory over the length, and tables of every number."""

from collections.abc import Mapping, Sequence
from typing import Any

from longspan.attention.registry import survey_class
from longspan.measure.case import FUSED, NAIVE
from longspan.measure.profile import Point, ProfileRow
from longspan.report import charts, palette
from longspan.report.arena_numbers import size, times
from longspan.report.charts import DASHES, ChartAxis, ChartLine, curves, legend
from longspan.report.page import Html, page, table, tag, text
from longspan.report.theme import SCRIPT, STYLE

TITLES = {
    "forward": ("Forward", "A forward pass in evaluation mode."),
    "training": ("Forward and backward", "With gradients of the inputs and of the mechanism's weights."),
    "decode": ("Decoding", "One more token after a text of this length. Memory is that of the state."),
}
STATES = {"memory": "out of memory", "unsupported": "not supported", "slow": "too slow", "failed": "failed"}


def profile_page(rows: Sequence[ProfileRow], machine: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The whole page."""
    sections = [
        _section(kind, [row for row in rows if row.kind == kind]) for kind in dict.fromkeys(r.kind for r in rows)
    ]
    return page(
        "longspan profile",
        _head(rows, machine, settings),
        *sections,
        style=charts.STYLE + palette.style() + STYLE,
        script=SCRIPT,
    )


def kind_of(mechanism: str) -> str:
    """The kind of a mechanism, which gives it its colour."""
    title = "dense" if mechanism in (NAIVE, FUSED) else survey_class(mechanism)
    kind = title.replace(" ", "-")
    return kind if kind in palette.KINDS else "other"


def _head(rows: Sequence[ProfileRow], machine: Mapping[str, Any], settings: Mapping[str, Any]) -> Html:
    sizes = f"batch {settings['batch']}, {settings['heads']} heads of {settings['head_dim']}, float32"
    sizes += ", causal" * settings["causal"] + ", a tenth of the keys hidden" * settings["padding"]
    threads = settings["threads"]
    on = f"{machine['processor']}, {threads} thread{'s' * (threads != 1)}, torch {machine['torch']}"
    began = sorted(point.measured.began for row in rows for point in row.points if point.measured.began)
    how = (
        "Each case ran in its own process, in turns with a product of 1024×1024 matrices. Times are the minimum "
        "over repeats; ratios compare times in units of that matrix product. naive is softmax attention with its n×n "
        "weights in memory, sdpa is torch's fused kernel. Memory is the peak above the inputs."
    )
    return tag(
        "header",
        tag("h1", "longspan profile"),
        tag("p", f"{sizes}. On {on}.", css="lede"),
        tag("p", (f"Started {began[0]}. " if began else "") + how, css="quiet"),
    )


def _section(kind: str, rows: Sequence[ProfileRow]) -> Html:
    title, explanation = TITLES[kind]
    lines_of = [(quantity, _lines(rows, quantity)) for quantity in ("time", "memory")]
    figures = [
        tag(
            "figure",
            tag("h3", f"{quantity.capitalize()} over length"),
            curves(lines, *_axes(quantity), quantity, width=460, height=460),
        )
        for quantity, lines in lines_of
        if any(len(line.points) > 1 for line in lines)
    ]
    supported = [row for row in rows if any(point.measured.state != "unsupported" for point in row.points)]
    lacking = [
        f"{row.name}: {row.points[0].measured.error or STATES['unsupported']}" for row in rows if row not in supported
    ]
    parts = [tag("h2", title), tag("p", explanation, css="quiet")]
    parts.append(legend([kind_of(row.mechanism) for row in supported]))
    parts += [tag("div", *figures, css="charts"), tag("h3", "Growth with the length"), _growth(supported)]
    parts += [tag("h3", "At each length"), _measurements(supported)]
    if lacking:
        reasons = tag("ul", *(tag("li", line) for line in lacking))
        parts.append(tag("details", tag("summary", f"Not supported: {len(lacking)}"), reasons))
    return tag("section", *parts)


def _lines(rows: Sequence[ProfileRow], quantity: str) -> list[ChartLine]:
    lines, seen = [], dict[str, int]()
    for row in rows:
        done = [point.measured for point in row.points if point.measured.state == "done"]
        values = [(m, 1e3 * m.least if quantity == "time" else (m.memory or 0) / 2**20) for m in done]
        values = [(measured, value) for measured, value in values if value > 0]
        if not values:
            continue
        kind = kind_of(row.mechanism)
        tips = [
            f"{milliseconds(m.least) if quantity == 'time' else size(m.memory or 0)} at length {m.case.length:,}"
            for m, _ in values
        ]
        points = [(float(measured.case.length), value) for measured, value in values]
        lines.append(ChartLine(row.mechanism, kind, points, tips, DASHES[seen.get(kind, 0) % len(DASHES)]))
        seen[kind] = seen.get(kind, 0) + 1
    return lines


def _axes(quantity: str) -> tuple[ChartAxis, ChartAxis]:
    across = ChartAxis(
        "length", lambda value: f"{value / 1024:g}K" if value % 1024 == 0 else f"{value:g}", factors=True
    )
    if quantity == "time":
        return across, ChartAxis("time, ms", _tick, factors=True)
    return across, ChartAxis("memory", lambda value: size(value * 2**20), factors=True, halves=True, left=62)


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _growth(rows: Sequence[ProfileRow]) -> Html:
    head = (
        "mechanism",
        "declared",
        "arithmetic",
        "time",
        "time, longest two",
        "memory",
        "memory, longest two",
        "faster than sdpa from",
    )
    cells: list[list[object]] = []
    for row in rows:
        declared = "–" if row.declared is None else f"n^{row.declared:g}"
        powers = (row.counted, row.time, row.last_time, row.memory, row.last_memory)
        shown = [declared, *("–" if power is None else f"n^{power:.2f}" for power in powers)]
        cells.append([_name(row), *shown, "" if row.crossover is None else _crossed(row)])
    return table(head, cells, numbers=range(1, 8))


def _crossed(row: ProfileRow) -> Html:
    assert row.crossover is not None
    explanation = {
        "below": "faster at every measured length",
        "between": "interpolated between two measured lengths",
        "beyond": "extrapolated: not faster at any measured length",
        "never": "its disadvantage does not shrink as the length grows",
        "unknown": "too few measurements",
    }[row.crossover.how]
    return Html(f'<span tabindex="0" title="{text(explanation)}">{text(row.crossover)}</span>')


def _measurements(rows: Sequence[ProfileRow]) -> Html:
    lengths = list(dict.fromkeys(point.measured.case.length for row in rows for point in row.points))
    cells = [[_name(row), *(_cell(row, point) for point in row.points)] for row in rows]
    return table(("mechanism", *(f"{length:,}" for length in lengths)), cells, numbers=range(1, len(lengths) + 1))


def _cell(row: ProfileRow, point: Point) -> Html:
    measured = point.measured
    if measured.state != "done":
        bad = "bad" if measured.state == "failed" else "quiet"
        why = text(measured.error or "no reason recorded")
        return Html(f'<span class="{bad}" tabindex="0" title="{why}">{text(STATES[measured.state])}</span>')
    lines = [
        f"{row.name}, length {measured.case.length:,}",
        f"{milliseconds(measured.least)}; the slowest of {len(measured.seconds)} repeats: {measured.spread:.0%} more",
    ]
    for name, speed, memory in (
        ("naive", point.speed_to_naive, point.memory_to_naive),
        ("sdpa", point.speed_to_fused, point.memory_to_fused),
    ):
        lines += [f"{times(speed)} the speed of {name}"] if speed else []
        lines += [f"{times(memory)} the memory of {name}"] if memory else []
    lines += [f"{measured.share:.0%} of the speed of matrix products"] if measured.share is not None else []
    first = [f"{times(speed)} {name}" for name, speed in _speeds(point) if speed]
    rest = [milliseconds(measured.least)] + ([size(measured.memory)] if measured.memory is not None else [])
    rest += [f"{measured.share:.0%} GEMM"] if measured.share is not None else []
    first_line = f'<span tabindex="0" title="{text(chr(10).join(lines))}">{text(" · ".join(first) or "–")}</span>'
    return Html(f'{first_line}<br><small class="quiet">{text(" · ".join(rest))}</small>')


def _speeds(point: Point) -> tuple[tuple[str, float | None], ...]:
    return (("sdpa", point.speed_to_fused), ("naive", point.speed_to_naive))


def _name(row: ProfileRow) -> Html:
    return tag("span", Html("<i></i>"), row.name, css=f"named k-{kind_of(row.mechanism)}")


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


__all__ = ["kind_of", "milliseconds", "profile_page"]
