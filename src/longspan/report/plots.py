"""Heat maps and scatter plots as SVG, beside the line charts of `report.charts`."""

from collections.abc import Sequence

from longspan.report.charts import ChartAxis, frame, scale, stroke, svg, words
from longspan.report.page import Html, text
from longspan.report.palette import KINDS

STYLE = """
.cell { shape-rendering: crispEdges; stroke: none; } .cell:hover { stroke: var(--ink); stroke-width: 1.5; }
.plain { fill: var(--line); fill-opacity: .35; } .shade { fill: var(--k); }
.point { fill: var(--k); fill-opacity: .75; stroke: var(--paper); stroke-width: 1; }
"""
LABELS = 34  # most labels along a side
CELL = 22.0
NARROW = 0.3
POSITIVE, NEGATIVE = "fixed-pattern", "learned-pattern"  # whose colours they have: blue and orange
GROUPS = tuple(kind for kind in KINDS if kind != "other")


def heat_map(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    across: str,
    up: str,
    diverging: bool = False,
    width: float = 460,
) -> Html:
    """Shaded cells with their numbers in tooltips. Zero is the page's ground; negative cells have another hue."""
    largest = max((abs(value) for row in values for value in row), default=0.0) or 1.0
    least = min((value for row in values for value in row), default=0.0)
    base = least if NARROW * largest < least < largest else 0.0  # all far from 0: show what differs
    left = 10 + 6.4 * max(len(name) for name in [up, *_labels(rows)])
    slanted = max(len(column) for column in _labels(columns)) > 3
    below = 22 + (5.2 * max(len(column) for column in _labels(columns)) if slanted else 10)
    size = min(CELL, (width - left - 10) / max(len(columns), 1))
    high = CELL if len(rows) <= 12 else max(size if len(rows) <= 40 else 3.0, 300 / len(rows))
    bottom = 20 + high * len(rows)
    parts = [words(left, 12, up, "quiet end")]
    for y, (name, row) in enumerate(zip(rows, values)):
        for x, (column, value) in enumerate(zip(columns, row)):
            share = min((abs(value) - base) / (largest - base), 1.0)
            kind = NEGATIVE if value < 0 else POSITIVE
            spot = f'x="{left + 4 + x * size:.1f}" y="{20 + y * high:.1f}" width="{size:.1f}" height="{high:.1f}"'
            tip = text(f"{up} {name}, {across} {column}: {value:.4g}")
            shade = f'<rect {spot} class="cell shade" fill-opacity="{share:.3f}"/>'
            parts.append(Html(f'<g class="k-{kind}"><title>{tip}</title><rect {spot} class="cell plain"/>{shade}</g>'))
    for index, name in _chosen(rows):
        parts.append(words(left, 20 + (index + 0.5) * high + 4, name, "quiet end"))
    for index, name in _chosen(columns):
        middle = left + 4 + (index + 0.5) * size
        if slanted:
            parts.append(
                Html(
                    f'<text transform="translate({middle + 3:.1f} {bottom + 6:.1f}) rotate(-60)" class="quiet end">'
                    f"{text(name)}</text>"
                )
            )
        else:
            parts.append(words(middle, bottom + 15, name, "quiet middle"))
    sign = f"−{largest:.3g} to {largest:.3g}" if diverging else f"{base:.3g} to {largest:.3g}"
    parts.append(words(left + 4, bottom + below + 8, f"{across}; colours from {sign}", "quiet"))
    return svg(width, bottom + below + 14, title, *parts)


def _labels(names: Sequence[str]) -> list[str]:
    return [name for _, name in _chosen(names)] or [""]


def _chosen(names: Sequence[str]) -> list[tuple[int, str]]:
    """The labels that fit: all, or every second, third, …"""
    step = -(-len(names) // LABELS)
    return [
        (index, name if len(name) <= 26 else f"{name[:25]}…") for index, name in enumerate(names) if index % step == 0
    ]


def point_plot(
    title: str,
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    groups: Sequence[str],
    *,
    across: ChartAxis | None = None,
    up: ChartAxis | None = None,
    joined: str = "",
    labels: Sequence[str] = (),
    width: float = 460,
    height: float = 360,
) -> Html:
    """Points coloured by group; a group beyond the number of colours has another shape.

    With both axes the plot has ticks and numbers. A line of steps joins the points of the group `joined`, from left to
    right. `labels` are written beside the points; names are shown on hovering.
    """
    kinds = list(dict.fromkeys(groups))
    legend = min(len(kinds), 20)
    height = max(height, 30 + 16 * legend)
    if across is None or up is None:
        x = scale([point[0] for point in points], 16, width - 130)
        y = scale([point[1] for point in points], height - 14, 14)
        parts = [stroke(x.begin, y.begin, x.end, y.begin, "axis"), stroke(x.begin, y.begin, x.begin, y.end, "axis")]
    else:
        x = scale([point[0] for point in points], up.left, width - 130)
        y = scale([point[1] for point in points], height - 44, 34)
        parts = frame(x, y, across, up)
    line = sorted(point for point, group in zip(points, groups) if group == joined)
    if line:
        kind = GROUPS[kinds.index(joined) % len(GROUPS)]
        parts.append(Html(f'<g class="k-{kind}">{_steps([(x(a), y(b)) for a, b in line])}</g>'))
    parts += [words(x(a) + 7, y(b) - 7, label, "halo") for (a, b), label in zip(points, labels) if label]
    for (a, b), name, group in zip(points, names, groups):
        number = kinds.index(group)
        shape = _shape(number // len(GROUPS), x(a), y(b))
        parts.append(Html(f'<g class="mark k-{GROUPS[number % len(GROUPS)]}"><title>{text(name)}</title>{shape}</g>'))
    for index, kind in enumerate(kinds[:legend]):
        at = 22 + 16 * index
        shape = _shape(index // len(GROUPS), width - 118, at - 4)
        parts.append(Html(f'<g class="k-{GROUPS[index % len(GROUPS)]}">{shape}</g>'))
        parts.append(words(width - 106, at, kind if len(kind) < 18 else f"{kind[:16]}…", "quiet"))
    if len(kinds) > legend:
        parts.append(words(width - 118, 22 + 16 * legend, f"and {len(kinds) - legend} more", "quiet"))
    return svg(width, height, title, *parts)


def _steps(points: Sequence[tuple[float, float]]) -> Html:
    """A line that goes right to the next point first, then up or down to it."""
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}" + "".join(f"H{a:.1f}V{b:.1f}" for a, b in points[1:])
    return Html(f'<path d="{path}" class="path"/>')


def _shape(kind: int, x: float, y: float) -> Html:
    if kind % 3 == 0:
        return Html(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="point"/>')
    if kind % 3 == 1:
        return Html(f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9" class="point"/>')
    corners = f"{x:.1f},{y - 6:.1f} {x + 5.5:.1f},{y + 4.5:.1f} {x - 5.5:.1f},{y + 4.5:.1f}"
    return Html(f'<polygon points="{corners}" class="point"/>')


__all__ = ["STYLE", "heat_map", "point_plot"]
