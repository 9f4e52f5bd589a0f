"""Pages and JSON of what measures found inside a model."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from longspan.inspect.measures.findings import (
    CAUTION,
    COUNTING,
    Figure,
    Finding,
    Grid,
    HeatMap,
    LineChart,
    Scatter,
)
from longspan.report import charts, palette, plots
from longspan.report.charts import DASHES, ChartAxis, ChartLine, curves
from longspan.report.page import Html, page, table, tag
from longspan.report.plots import heat_map, point_plot
from longspan.report.theme import SCRIPT, STYLE

COLOURS = ("fixed-pattern", "learned-pattern", "low-rank", "kernel", "memory", "recurrent", "dense")
INSIDE = f"{COUNTING} {CAUTION}"  # for what is inside a model
FEW = 200  # points of a drawn line
WIDE = ".charts .whole { grid-column: 1 / -1; max-width: none; }\n"


def findings_page(title: str, facts: Mapping[str, object], findings: Sequence[Finding], caution: str = INSIDE) -> str:
    """A page of its own: facts about the model and the text, a caution, then a section for each finding."""
    return page(
        title,
        tag(
            "header",
            tag("h1", title),
            tag("p", ". ".join(f"{name}: {value}" for name, value in facts.items()) + ".", css="lede"),
            tag("p", caution, css="warning"),
            _contents(findings),
        ),
        *(_section(finding) for finding in findings),
        style=charts.STYLE + palette.style() + plots.STYLE + STYLE + WIDE,
        script=SCRIPT,
    )


def findings_json(title: str, facts: Mapping[str, object], findings: Sequence[Finding], caution: str = INSIDE) -> str:
    """The same for programs: every number, and the sentences."""
    record = {
        "title": title,
        **facts,
        "caution": caution,
        "findings": {finding.name: finding.plain() for finding in findings},
    }
    return json.dumps(_finite(record), indent=1, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    """JSON has no infinities and no NaN: they become null."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _contents(findings: Sequence[Finding]) -> Html:
    """What each measure says, first."""
    rows = [tag("li", tag("b", finding.title), ": ", finding.sentence or finding.skipped) for finding in findings]
    return tag("ul", *rows, css="conclusions")


def _section(finding: Finding) -> Html:
    if finding.skipped:
        return tag("section", tag("h2", finding.title), tag("p", f"Does not apply: {finding.skipped}.", css="quiet"))
    pictures = [figure for figure in finding.figures if not isinstance(figure, Grid)]
    grids = [figure for figure in finding.figures if isinstance(figure, Grid)]
    parts = [
        tag("h2", finding.title),
        tag("p", finding.sentence, css="lede"),
        tag("p", tag("b", "Control: "), finding.control, css="quiet"),
    ]
    if pictures:
        shown = [tag("figure", tag("h3", f.title), draw(f), css="whole" * _is_wide(f)) for f in pictures]
        parts.append(tag("div", *shown, css="charts"))
    for grid in grids:
        parts += [tag("h3", grid.title), _grid(grid)]
    return tag("section", *parts)


def _is_wide(figure: Figure) -> bool:
    """Whether a figure needs the width of the page: columns with long names."""
    return isinstance(figure, HeatMap) and len(figure.columns) > 12 and max(map(len, figure.columns)) > 3


def draw(figure: Figure) -> Html:
    """The SVG of a figure."""
    if isinstance(figure, HeatMap):
        return heat_map(
            figure.title,
            figure.rows,
            figure.columns,
            figure.values,
            across=figure.across,
            up=figure.up,
            diverging=figure.diverging,
            width=940 if _is_wide(figure) else 460,
        )
    if isinstance(figure, Scatter):
        across, up = ((ChartAxis(title, _tick, left=56) if title else None) for title in (figure.across, figure.up))
        return point_plot(
            figure.title,
            figure.points,
            figure.names,
            figure.groups,
            across=across,
            up=up,
            joined=figure.joined,
            labels=figure.labels,
        )
    assert isinstance(figure, LineChart)
    lines, colour, grey = [], 0, 0
    for line in figure.lines:
        points = _thinned(line.points)
        tips = [f"{y:.4g} at {x:g}" for x, y in points]
        if line.control:
            lines.append(ChartLine(line.name, "other", points, tips, DASHES[1 + grey % (len(DASHES) - 1)]))
            grey += 1
        else:
            lines.append(
                ChartLine(
                    line.name,
                    COLOURS[colour % len(COLOURS)],
                    points,
                    tips,
                    DASHES[colour // len(COLOURS)],
                    _thinned(line.band),
                )
            )
            colour += 1
    across = ChartAxis(figure.across, factors=figure.log_across)
    up = ChartAxis(figure.up, _tick, factors=figure.log_up, left=56)
    return curves(lines, across, up, figure.title, width=560, height=320)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    step = max(1, len(points) // FEW)
    return [(float(x), float(y)) for x, y in [*points[:-1:step], points[-1]]] if points else []


def _tick(value: float) -> str:
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.0e}"


def _grid(grid: Grid) -> Html:
    def cell(value: object) -> object:
        if value is None:
            return "–"
        if isinstance(value, float):
            return f"{value:.4g}"
        return value

    def numeric(column: int) -> bool:
        values = [row[column] for row in grid.rows if column < len(row) and row[column] not in (None, "")]
        return 2 * sum(isinstance(value, (int, float)) for value in values) > len(values)

    numbers = [column for column in range(len(grid.head)) if numeric(column)]
    return table(grid.head, [[cell(value) for value in row] for row in grid.rows], numbers=numbers)


__all__ = ["draw", "findings_json", "findings_page"]
