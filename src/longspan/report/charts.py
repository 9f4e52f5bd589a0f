"""Charts as SVG markup: the page colours them for light and dark mode; every mark has its numbers in a tooltip."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log, sqrt

from longspan.report.labels import Box, free_corner, label_rows, place_labels, ratio_ticks, spread, ticks
from longspan.report.page import Html, tag, text
from longspan.report.palette import KINDS

STYLE = """
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text, svg text.quiet { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg text.quiet { fill: var(--quiet); } svg text.halo { paint-order: stroke; stroke: var(--paper); stroke-width: 3px;
  stroke-linejoin: round; } svg text.bad { fill: var(--bad); }
svg text.end { text-anchor: end; } svg text.middle { text-anchor: middle; } svg text.name { font-weight: 600; }
.paper { fill: var(--paper); }
.rule { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--quiet); stroke-width: 1; }
.mark-line { stroke: var(--quiet); stroke-width: 1.2; stroke-dasharray: 4 4; fill: none; }
.lead { stroke: var(--k); stroke-width: 1; opacity: .7; }
.disc { fill: var(--k); fill-opacity: .38; stroke: var(--k); stroke-width: 1.5; }
.ring { fill: var(--paper); stroke: var(--k); stroke-width: 1.8; stroke-dasharray: 3 2; }
.dot { fill: var(--k); stroke: var(--paper); stroke-width: 1; } .whisker { stroke: var(--k); stroke-width: 2; }
.path { fill: none; stroke: var(--k); stroke-width: 2; stroke-linejoin: round; }
.band { fill: var(--k); fill-opacity: .16; stroke: none; }
.size { fill: none; stroke: var(--quiet); stroke-width: 1; }
.mark:hover .disc, .mark:focus .disc { fill-opacity: .7; } .mark:focus { outline: none; }
.mark:hover .path, .mark:focus .path { stroke-width: 3.5; } .mark:focus .dot, .mark:hover .dot { stroke: var(--ink); }
"""


LEAST_SPAN = 5.0  # percent that a chart of accuracies spans at least, so that noise does not look large
DASHES = ("", "6 3", "2 3", "8 3 2 3")  # lines of one kind share a colour and differ by their dashes


@dataclass(frozen=True)
class Circle:
    """A model in the chart of accuracy over speed."""

    name: str
    kind: str
    speed: float
    accuracy: float  # percent
    memory: float | None  # the area
    tip: str
    pretrained: float | None = None


@dataclass(frozen=True)
class Interval:
    """A row of a chart of accuracies: marks (mean, half of the interval, tip), the second for self pre-training."""

    name: str
    kind: str
    marks: Sequence[tuple[float, float | None, str] | None]
    failed: str = ""  # the reason if there is no mark


@dataclass(frozen=True)
class ChartLine:
    name: str
    kind: str
    points: Sequence[tuple[float, float]]
    tips: Sequence[str]
    dash: str = ""
    band: Sequence[tuple[float, float]] = ()  # low and high at each point, such as a deviation over seeds


@dataclass(frozen=True)
class ChartAxis:
    """Title, number format and range of an axis."""

    title: str
    number: Callable[[float], str] = field(default=lambda value: f"{value:g}")
    factors: bool = False  # logarithmic
    holds: Sequence[float] = ()  # values that must be in range
    halves: bool = False  # ticks are powers of two and steps between them, as for memory sizes
    left: float = 44  # room for its numbers


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    begin: float
    end: float
    factors: bool
    halves: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (log(x) for x in (self.low, self.high, value)) if self.factors else (self.low, self.high, value)
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        return ratio_ticks(self.low, self.high, halves=self.halves) if self.factors else ticks(self.low, self.high)


def scale(
    values: Sequence[float],
    begin: float,
    end: float,
    *,
    factors: bool = False,
    room: float = 0.06,
    halves: bool = False,
) -> Scale:
    """A scale that covers all values, with some room at both ends."""
    low, high = min(values), max(values)
    if factors:
        wide = max(high / low, 1.5) ** room
        low, high = (low / wide, high * wide) if high / low >= 1.5 else (low / 1.2, high * 1.2)
    else:
        wide = max((high - low) * room, 1e-9 + abs(high) * 0.02)
        low, high = low - wide, high + wide
    return Scale(low, high, begin, end, factors, halves)


def words(x: float, y: float, content: object, css: str = "") -> Html:
    return Html(f'<text x="{x:.1f}" y="{y:.1f}" class="{css}">{text(content)}</text>')


def stroke(x1: float, y1: float, x2: float, y2: float, css: str) -> Html:
    return Html(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>')


def backing(x: float, y: float, width: float, height: float) -> Html:
    """Covers what is behind a name."""
    return Html(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" class="paper"/>')


def disc(x: float, y: float, r: float, css: str) -> Html:
    return Html(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" class="{css}"/>')


def mark(kind: str, tip: str, *content: Html, focusable: bool = True) -> Html:
    """A group in the colour of its kind, with a tooltip for pointer and keyboard."""
    stop = ' tabindex="0"' if focusable else ""
    return Html(f'<g class="mark k-{kind}"{stop}><title>{text(tip)}</title>{"".join(content)}</g>')


def svg(width: float, height: float, description: str, *parts: Html, css: str = "") -> Html:
    """`description` is for screen readers."""
    named = f' class="{css}"' if css else ""
    return Html(
        f'<svg viewBox="0 0 {width:g} {height:g}" role="group" aria-label="{text(description)}"{named}>'
        f"{''.join(parts)}</svg>"
    )


def legend(kinds: Sequence[str]) -> Html:
    """Names and colours of these kinds."""
    parts = [tag("span", Html("<i></i>"), KINDS[name][0], css=f"k-{name}") for name in KINDS if name in kinds]
    return tag("div", *parts, css="legend")


def frame(x: Scale, y: Scale, across: ChartAxis, up: ChartAxis) -> list[Html]:
    """Grid lines, numbers and titles of both axes."""
    parts = []
    for tick in y.ticks():
        parts += [stroke(x.begin, y(tick), x.end, y(tick), "rule")]
        parts += [words(x.begin - 6, y(tick) + 4, up.number(tick), "quiet end")]
    parts.append(stroke(x.begin, y.begin, x.end, y.begin, "axis"))
    for tick in x.ticks():
        parts.append(stroke(x(tick), y.begin, x(tick), y.begin + 4, "axis"))
        parts.append(words(x(tick), y.begin + 17, across.number(tick), "quiet middle"))
    parts.append(words((x.begin + x.end) / 2, y.begin + 36, across.title, "quiet middle"))
    parts.append(words(x.begin - up.left + 4, y.end - 10, up.title, "quiet"))
    return parts


def scatter(
    circles: Sequence[Circle],
    across: ChartAxis,
    up: ChartAxis,
    *,
    lines: Sequence[tuple[str, float]] = (),
    size: Callable[[float], str] = str,
    width: float = 980,
    height: float = 540,
    css: str = "",
    areas: bool = True,
) -> Html:
    """Accuracy over speed; the area of a circle is memory, horizontal `lines` are trivial predictors.

    Without `areas` all circles are alike, and `speed` may be any positive quantity.
    """
    largest = min(width, height) * 0.075
    most = max((circle.memory for circle in circles if circle.memory and areas), default=0.0)
    radii = [max(3.5, largest * sqrt(c.memory / most)) if c.memory and most else 5.0 if areas else 7.0 for c in circles]
    heights = [circle.accuracy for circle in circles] + [c.pretrained for c in circles if c.pretrained is not None]
    at_x = [c.speed for c in circles] + list(across.holds)
    x = scale(at_x, 46, width - 14, factors=across.factors, room=0.1, halves=across.halves)
    lines, _ = split_lines(heights, lines)
    y = scale(heights + [value for _, value in lines], height - 44, 34, room=0.1)
    parts = frame(x, y, across, up)
    if across.factors and x.low < 1 < x.high:
        parts.append(stroke(x(1), y.begin, x(1), y.end, "mark-line"))
    centres = [(x(c.speed), y(c.accuracy), r) for c, r in zip(circles, radii)]
    discs = [Box(at - r, above - r, at + r, above + r) for at, above, r in centres]
    line_names = []
    for (title, value), below in zip(lines, _named_below([y(value) for _, value in lines])):
        parts.append(stroke(x.begin, y(value), x.end, y(value), "mark-line"))
        name, foot = f"{title} {value:.1f}", y(value) + (14 if below else -5)
        long = len(name) * 6.6
        right, left = (Box(at, foot - 12, at + long, foot + 3) for at in (x.end - long, x.begin + 4))
        box = min((right, left), key=lambda side: sum(side.shared(other) for other in discs))
        ends = box is right
        parts.append(words(box.right if ends else box.left, foot, name, "quiet end halo" if ends else "quiet halo"))
        line_names.append(box)
    sizes = [(len(c.name) * 7.2 + 2, 14.0) for c in circles]
    rings = [(x(c.speed), y(c.accuracy), y(c.pretrained)) for c in circles if c.pretrained is not None]
    occupied = line_names + [Box(at - 6, min(one, other) - 6, at + 6, max(one, other) + 6) for at, one, other in rings]
    within = Box(x.begin, y.end, x.end, y.begin)
    if most:
        covered = discs + occupied + [Box(x.begin, y(value) - 16, x.end, y(value) + 2) for _, value in lines]
        corner = free_corner(2 * largest + 70, 2 * largest, within, covered)
        if any(corner.shared(box) for box in covered):  # no corner is free: below the chart
            corner = Box(x.begin, height, x.begin + 2 * largest + 70, height + 2 * largest)
            height += 2 * largest + 8
        occupied.append(corner)
        parts += _sizes(most, largest, size, corner.left, corner.bottom)
    upright = [Box(x(1) - 3, y.end, x(1) + 3, y.begin)] if across.factors and x.low < 1 < x.high else []
    labels = place_labels(centres, sizes, within, occupied + upright)
    # Large circles first, so that they do not cover small ones.
    for index in sorted(range(len(circles)), key=lambda number: -radii[number]):
        circle, (at, above, r), label = circles[index], centres[index], labels[index]
        content = []
        if circle.pretrained is not None:
            top = y(circle.pretrained)
            edge = above - min(r, above - top) if top < above else above + min(r, top - above)
            content += [stroke(at, edge, at, top, "lead"), disc(at, top, 5, "ring")]
        content.append(disc(at, above, r, "disc" if circle.memory or not areas else "ring"))
        if label.leads:
            content.append(stroke(at, above, label.x, label.y, "lead"))
        content.append(words(label.x, label.y + 4, circle.name, "name middle halo"))
        parts.append(mark(circle.kind, circle.tip, *content))
    meaning = "; the area of a circle is memory" if areas else ""
    return svg(width, height, f"{up.title} over {across.title}{meaning}", *parts, css=css)


def split_lines(
    heights: Sequence[float], lines: Sequence[tuple[str, float]]
) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """The lines near enough to `heights` to be drawn, and those that would leave most of the chart empty."""
    low, high = min(heights), max(heights)
    reach = 0.6 * max(high - low, LEAST_SPAN)
    shown = [line for line in lines if low - reach <= line[1] <= high + reach]
    return shown, [line for line in lines if line not in shown]


def _sizes(most: float, largest: float, size: Callable[[float], str], left: float, bottom: float) -> list[Html]:
    """The key of circle areas."""
    parts: list[Html] = []
    for share in (1.0, 0.25):
        r = largest * sqrt(share)
        parts.append(disc(left + largest, bottom - r, r, "size"))
        parts.append(words(left + 2 * largest + 8, bottom - 2 * r + 9, size(most * share), "quiet halo"))
    return parts


def _named_below(heights: Sequence[float]) -> list[bool]:
    """Which horizontal lines have their name below, because another line is just above."""
    return [any(0 < height - other < 16 for other in heights) for height in heights]


def intervals(
    rows: Sequence[Interval], lines: Sequence[tuple[str, float]], description: str, width: float = 440
) -> Html:
    """Accuracies with their intervals, one row for each model; vertical lines are trivial predictors."""
    left = 8 + max((len(row.name) * 6.9 for row in rows), default=60)
    shown = [m for row in rows for m in row.marks if m is not None]
    values = [v for mean, half, _ in shown for v in (mean - (half or 0), mean + (half or 0))]
    values += [value for _, value in lines]
    if not values:
        values = [0.0, 100.0]
    values = [min(100.0, max(0.0, value)) for value in values]
    x = scale(values, left + 8, width - 12)
    levels = label_rows([(x(value), len(f"{name} {value:.1f}") * 6.3) for name, value in lines], width)
    top, step = 16 + 15 * (max(levels, default=-1) + 1), 26
    bottom = top + step * len(rows)
    parts = []
    # All lines before all names, so that no line crosses a name.
    for (_, value), level in zip(lines, levels):
        parts.append(stroke(x(value), 17 + 15 * level, x(value), bottom, "mark-line"))
    for (name, value), level in zip(lines, levels):
        label = f"{name} {value:.1f}"
        room = len(label) * 6.3 / 2 + 2
        at = min(width - room, max(room, x(value)))
        parts.append(backing(at - room, 1 + 15 * level, 2 * room, 14))
        parts.append(words(at, 12 + 15 * level, label, "quiet middle"))
    for tick in x.ticks():
        parts.append(stroke(x(tick), bottom, x(tick), bottom + 4, "axis"))
        parts.append(words(x(tick), bottom + 17, f"{tick:g}", "quiet middle"))
    parts.append(stroke(x.begin, bottom, x.end, bottom, "axis"))
    for number, row in enumerate(rows):
        middle = top + step * (number + 0.5)
        parts.append(stroke(4, middle + step / 2, width, middle + step / 2, "rule"))
        parts.append(words(left, middle + 4, row.name, "end"))
        if row.failed and not any(row.marks):
            parts.append(mark(row.kind, row.failed, words(x.begin + 4, middle + 4, "failed", "bad")))
        both = sum(numbers is not None for numbers in row.marks) > 1
        for pretrained, numbers in enumerate(row.marks):
            if numbers is None:
                continue
            mean, half, tip = numbers
            y = middle + (5 * (2 * pretrained - 1) if both else 0)
            content = []
            if half:
                ends = (x(max(x.low, mean - half)), x(min(x.high, mean + half)))
                content.append(stroke(ends[0], y, ends[1], y, "whisker"))
            parts.append(mark(row.kind, tip, *content, disc(x(mean), y, 5, "ring" if pretrained else "dot")))
    return svg(width, bottom + 24, description, *parts)


def curves(
    lines: Sequence[ChartLine],
    across: ChartAxis,
    up: ChartAxis,
    description: str,
    *,
    levels: Sequence[tuple[str, float]] = (),
    width: float = 440,
    height: float = 300,
) -> Html:
    """Lines with their names to the right of the chart; horizontal `levels` are trivial predictors."""
    lines = [line for line in lines if line.points]
    level_names = [f"{name} {value:.1f}" for name, value in levels]
    names = [line.name for line in lines] + level_names
    right = width - 14 - max((len(name) * 6.6 for name in names), default=0)
    height = max(height, 78 + 14 * len(names))
    xs = [x for line in lines for x, _ in line.points] + list(across.holds)
    ys = [y for line in lines for _, y in line.points] + list(up.holds) + [value for _, value in levels]
    ys += [edge for line in lines for edges in line.band for edge in edges]
    x = scale(xs, up.left, right, factors=across.factors, room=0.02)
    y = scale(ys, height - 44, 34, factors=up.factors, halves=up.halves)
    parts = frame(x, y, across, up)
    heights = [y(line.points[-1][1]) for line in lines] + [y(value) for _, value in levels]
    ends = spread(heights, 14, y.end, y.begin)
    for (_, value), name, end in zip(levels, level_names, ends[len(lines) :]):
        parts.append(stroke(x.begin, y(value), x.end, y(value), "mark-line"))
        parts.append(stroke(x.end, y(value), right + 6, end, "rule"))
        parts.append(words(right + 8, end + 4, name, "quiet"))
    for line in lines:  # all bands below all lines
        if line.band:
            along = [a for a, _ in line.points]
            upper = [(a, high) for a, (_, high) in zip(along, line.band)]
            lower = [(a, low) for a, (low, _) in zip(along, line.band)]
            outline = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in [*upper, *reversed(lower)])
            parts.append(Html(f'<g class="k-{line.kind}"><polygon points="{outline}" class="band"/></g>'))
    for line, end in zip(lines, ends):
        drawn = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line.points)
        dashed = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        content = [Html(f'<polyline points="{drawn}" class="path"{dashed}/>')]
        last = (x(line.points[-1][0]), y(line.points[-1][1]))
        content.append(stroke(last[0], last[1], right + 6, end, "lead"))
        content.append(words(right + 8, end + 4, line.name, ""))
        parts.append(mark(line.kind, f"{line.name}: {line.tips[-1]}", *content))
        stride = max(1, len(line.points) // 40)
        parts += [
            mark(line.kind, f"{line.name}: {tip}", disc(x(a), y(b), 3.2, "dot"), focusable=False)
            for number, ((a, b), tip) in enumerate(zip(line.points, line.tips))
            if number % stride == 0 or number == len(line.points) - 1
        ]
    return svg(width, height, description, *parts)
