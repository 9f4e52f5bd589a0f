"""The results as a chart: how many times faster longspan is than each peer, forward and with backward."""

from collections.abc import Mapping
from typing import Any

from benchmarks.peers.cell import KINDS
from benchmarks.peers.table import TITLES, ratio
from longspan.report import palette
from longspan.report.charts import STYLE, disc, mark, scale, stroke, words
from longspan.report.page import Html, text

PALETTE = """
:root { --ink: #1a1c20; --paper: #fdfdfc; --quiet: #5d636e; --line: #d9dce1; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ec; --paper: #15171a; --quiet: #9aa1ad; --line: #33373e; --bad: #ff8a80; } }
"""
WIDTH, STEP, TOP, LETTER = 900.0, 24.0, 46.0, 6.6


def svg(results: Mapping[str, Any]) -> str:
    """The chart as an SVG file, for light and dark themes."""
    rows = sorted(results["rows"], key=lambda row: -(ratio(row, KINDS[1]) or ratio(row, KINDS[0]) or 0.0))
    found = [value for row in rows for kind in KINDS if (value := ratio(row, kind))]
    left = 16 + LETTER * max(len(_name(row)) for row in rows)
    x = scale([*found, 1.0], left + 10, WIDTH - 20, factors=True)
    bottom = TOP + STEP * len(rows)
    said = f"How many times faster longspan is, length {results['length']}: filled {TITLES['forward']}, "
    parts = [words(8, 18, f"{said}ring {TITLES['backward']}", "name")]
    for tick in x.ticks():
        parts.append(stroke(x(tick), TOP, x(tick), bottom, "axis" if tick == 1 else "rule"))
        parts.append(words(x(tick), TOP - 8, f"{tick:g}×", "quiet middle"))
    parts += [part for number, row in enumerate(rows) for part in _row(row, TOP + STEP * (number + 0.5), left, x)]
    parts.append(words(8, bottom + 18, "left of 1× longspan is slower", "quiet"))
    style = f"{PALETTE}{STYLE}{palette.style()}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {bottom + 28:g}" role="img" '
        f'aria-label="{text(said)}"><style>{style}</style>'
        f'<rect width="100%" height="100%" style="fill: var(--paper)"/>{"".join(parts)}</svg>\n'
    )


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['peer']}: {row['what']}"


def _row(row: Mapping[str, Any], middle: float, left: float, x: Any) -> list[Html]:
    parts = [words(left, middle + 4, _name(row), "end")]
    values = [ratio(row, kind) for kind in KINDS]
    if values[0] is None and values[1] is None:
        return [*parts, words(x(1) + 8, middle + 4, "not measured", "bad")]
    shown = [(x(value), name) for value, name in zip(values, ("dot", "ring")) if value is not None]
    tip = ", ".join(f"{TITLES[kind]} {value:.3g}×" for kind, value in zip(KINDS, values) if value is not None)
    marks = [disc(at, middle, 5, name) for at, name in shown]
    line = [stroke(shown[0][0], middle, shown[1][0], middle, "lead")] if len(shown) == 2 else []
    return [*parts, mark(row["kind"], f"{_name(row)}: {tip}", *line, *marks)]
