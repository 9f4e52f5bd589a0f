"""A profile as a page: charts of time and memory over the length, and every figure in tables."""

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
    "training": ("Forward and backward", "With the gradients of the inputs and of the mechanism's own weights."),
    "decode": ("Decoding", "One more token after a text of the length. Memory is that of the state."),
}
STATES = {"memory": "too much memory", "unsupported": "no such form", "slow": "too slow", "failed": "failed"}


def profile_page(rows: Sequence[ProfileRow], machine: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The whole page."""
    made = [_section(kind, [row for row in rows if row.kind == kind]) for kind in dict.fromkeys(r.kind for r in rows)]
    return page(
        "longspan profile",
        _head(rows, machine, settings),
        *made,
        style=charts.STYLE + palette.style() + STYLE,
        script=SCRIPT,
    )


def kind_of(mechanism: str) -> str:
    """The family that gives it its colour."""
    title = "dense" if mechanism in (NAIVE, FUSED) else survey_class(mechanism)
    kind = title.replace(" ", "-")
    return kind if kind in palette.KINDS else "other"


def _head(rows: Sequence[ProfileRow], machine: Mapping[str, Any], settings: Mapping[str, Any]) -> Html:
    said = f"batch {settings['batch']}, {settings['heads']} heads of {settings['head_dim']}, float32"
    said += ", causal" * settings["causal"] + ", a tenth of the keys hidden" * settings["padding"]
    threads = settings["threads"]
    on = f"{machine['processor']}, {threads} thread{'s' * (threads != 1)}, torch {machine['torch']}"
    began = sorted(point.measured.began for row in rows for point in row.points if point.measured.began)
    how = (
        "Each case had a process of its own and took turns with a product of matrices of 1024×1024; the least time "
        "counts, and cases are compared in units of that product. naive is softmax attention with its n×n weights in "
        "memory, sdpa torch's fused kernel. Memory is the peak beyond the inputs."
    )
    return tag(
        "header",
        tag("h1", "longspan profile"),
        tag("p", f"{said}. On {on}.", kind="lede"),
        tag("p", (f"Begun {began[0]}. " if began else "") + how, kind="quiet"),
    )


def _section(kind: str, rows: Sequence[ProfileRow]) -> Html:
    title, said = TITLES[kind]
    drawn = [(what, _lines(rows, what)) for what in ("time", "memory")]
    figures = [
        tag(
            "figure",
            tag("h3", f"{what.capitalize()} over length"),
            curves(lines, *_axes(what), what, width=460, height=460),
        )
        for what, lines in drawn
        if any(len(line.points) > 1 for line in lines)
    ]
    able = [row for row in rows if any(point.measured.state != "unsupported" for point in row.points)]
    lacking = [
        f"{row.name}: {row.points[0].measured.error or STATES['unsupported']}" for row in rows if row not in able
    ]
    parts = [tag("h2", title), tag("p", said, kind="quiet"), legend([kind_of(row.mechanism) for row in able])]
    parts += [tag("div", *figures, kind="charts"), tag("h3", "How it grows"), _growth(able)]
    parts += [tag("h3", "At each length"), _figures(able)]
    if lacking:
        inside = tag("ul", *(tag("li", line) for line in lacking))
        parts.append(tag("details", tag("summary", f"Without such a form: {len(lacking)}"), inside))
    return tag("section", *parts)


def _lines(rows: Sequence[ProfileRow], what: str) -> list[ChartLine]:
    found, seen = [], dict[str, int]()
    for row in rows:
        done = [point.measured for point in row.points if point.measured.state == "done"]
        values = [(each, 1e3 * each.least if what == "time" else (each.memory or 0) / 2**20) for each in done]
        values = [(each, value) for each, value in values if value > 0]
        if not values:
            continue
        kind = kind_of(row.mechanism)
        tips = [
            f"{milliseconds(each.least) if what == 'time' else size(each.memory or 0)} at length {each.case.length:,}"
            for each, _ in values
        ]
        points = [(float(each.case.length), value) for each, value in values]
        found.append(ChartLine(row.mechanism, kind, points, tips, DASHES[seen.get(kind, 0) % len(DASHES)]))
        seen[kind] = seen.get(kind, 0) + 1
    return found


def _axes(what: str) -> tuple[ChartAxis, ChartAxis]:
    across = ChartAxis(
        "length", lambda value: f"{value / 1024:g}K" if value % 1024 == 0 else f"{value:g}", factors=True
    )
    if what == "time":
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
        "longest two",
        "memory",
        "longest two",
        "faster than sdpa from",
    )
    made = []
    for row in rows:
        declared = "–" if row.declared is None else f"n^{row.declared:g}"
        powers = (row.counted, row.time, row.last_time, row.memory, row.last_memory)
        shown = [declared, *("–" if power is None else f"n^{power:.2f}" for power in powers)]
        made.append([_name(row), *shown, "" if row.crossover is None else _crossed(row)])
    return table(head, made, numbers=range(1, 8))


def _crossed(row: ProfileRow) -> Html:
    assert row.crossover is not None
    said = {
        "below": "at the shortest length that was measured, and at all others",
        "between": "interpolated between two lengths that were measured",
        "beyond": "extrapolated: it was not faster at any length that was measured",
        "never": "it does not come nearer as the length grows",
        "unknown": "there is nothing to go by",
    }[row.crossover.how]
    return Html(f'<span tabindex="0" title="{text(said)}">{text(row.crossover)}</span>')


def _figures(rows: Sequence[ProfileRow]) -> Html:
    lengths = list(dict.fromkeys(point.measured.case.length for row in rows for point in row.points))
    made = [[_name(row), *(_cell(row, point) for point in row.points)] for row in rows]
    return table(("mechanism", *(f"{length:,}" for length in lengths)), made, numbers=range(1, len(lengths) + 1))


def _cell(row: ProfileRow, point: Point) -> Html:
    found = point.measured
    if found.state != "done":
        bad = "bad" if found.state == "failed" else "quiet"
        why = text(found.error or "no reason was recorded")
        return Html(f'<span class="{bad}" tabindex="0" title="{why}">{text(STATES[found.state])}</span>')
    lines = [
        f"{row.name}, length {found.case.length:,}",
        f"{milliseconds(found.least)}, the longest of {len(found.seconds)} repeats {found.spread:.0%} more",
    ]
    for name, speed, memory in (
        ("naive", point.speed_to_naive, point.memory_to_naive),
        ("sdpa", point.speed_to_fused, point.memory_to_fused),
    ):
        lines += [f"{times(speed)} the speed of {name}"] if speed else []
        lines += [f"{times(memory)} the memory of {name}"] if memory else []
    lines += [f"{found.share:.0%} of the rate of matrix products"] if found.share is not None else []
    first = [f"{times(speed)} {name}" for name, speed in _speeds(point) if speed]
    rest = [milliseconds(found.least)] + ([size(found.memory)] if found.memory is not None else [])
    rest += [f"{found.share:.0%} GEMM"] if found.share is not None else []
    inside = f'<span tabindex="0" title="{text(chr(10).join(lines))}">{text(" · ".join(first) or "–")}</span>'
    return Html(f'{inside}<br><small class="quiet">{text(" · ".join(rest))}</small>')


def _speeds(point: Point) -> tuple[tuple[str, float | None], ...]:
    return (("sdpa", point.speed_to_fused), ("naive", point.speed_to_naive))


def _name(row: ProfileRow) -> Html:
    return tag("span", Html("<i></i>"), row.name, kind=f"named k-{kind_of(row.mechanism)}")


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


__all__ = ["kind_of", "milliseconds", "profile_page"]
