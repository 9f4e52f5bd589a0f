"""The arena's charts for papers, as SVG and PNG, by matplotlib where it is installed."""

from collections.abc import Callable, Sequence
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.report.arena_accuracy import circles, interval_rows
from longspan.report.arena_learning import learning
from longspan.report.arena_numbers import size, task_title
from longspan.report.arena_speed import axes, speed_lines
from longspan.report.charts import ChartAxis, ChartLine, near, scale
from longspan.report.labels import Box, free_corner, place, place_rows, ratio_ticks, spread
from longspan.report.palette import KINDS
from longspan.report.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LACKING = (
    "No figures were written, as matplotlib is missing: pip install 'longspan[report]', then make the report again."
)
QUIET, RULE = "#5d636e", "#d9dce1"
LARGEST = 24.0  # radius in points
PANEL = 190.0  # points that a panel is wide, about
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "axes.grid": False,
    "svg.hashsalt": "longspan",  # the same figure is the same file
}


def write(results: Results, folder: Path) -> tuple[list[Path], str]:
    """The files, or why there are none."""
    try:
        import matplotlib as library
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return [], LACKING
    drawings: dict[str, Callable[[Figure], bool]] = {
        "accuracy_over_speed": lambda figure: _scatter(results, figure),
        "accuracy": lambda figure: _intervals(results, figure),
        "learning": lambda figure: _learning(results, figure),
        "efficiency": lambda figure: _efficiency(results, figure),
    }
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with library.rc_context(STYLE):
        for name, draw in drawings.items():
            figure = Figure(layout="constrained")
            FigureCanvasAgg(figure)
            if draw(figure):
                for ending, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
                    path = folder / f"{name}.{ending}"
                    figure.savefig(path, dpi=200, metadata=metadata)
                    made.append(path)
    return made, ""


def _colour(kind: str) -> str:
    return KINDS[kind][1]


def _scatter(results: Results, figure: "Figure") -> bool:
    found, across, up, lines, _ = circles(results)
    if not found:
        return False
    # In points, so that names can be placed before anything is drawn.
    width, height, left, bottom = 520.0, 330.0, 44.0, 40.0
    figure.set_layout_engine("none")
    figure.set_size_inches(width / 72, height / 72)
    drawn = figure.add_axes((left / width, bottom / height, 1 - (left + 10) / width, 1 - (bottom + 12) / height))
    heights = [each.accuracy for each in found] + [each.pretrained for each in found if each.pretrained is not None]
    x = scale([each.speed for each in found] + list(across.holds), left, width - 10, factors=across.factors, room=0.1)
    lines, _ = near(heights, lines)
    y = scale(heights + [value for _, value in lines], height - bottom, 12.0, room=0.1)
    _ranges(drawn, x.low, x.high, y.low, y.high, across)
    drawn.set_xticks(x.ticks(), [across.number(tick) for tick in x.ticks()])
    drawn.minorticks_off()
    drawn.grid(axis="y", color=RULE, linewidth=0.6)
    drawn.set_axisbelow(True)
    if x.low < 1 < x.high:
        drawn.axvline(1, color=QUIET, linewidth=0.8, linestyle="--")
    for name, value in lines:
        drawn.axhline(value, color=QUIET, linewidth=0.8, linestyle="--")
        drawn.annotate(f"{name} {value:.1f}", (x.high, value), (0, 2), ha="right", fontsize=7, color=QUIET, **_OFFSET)
    most = max((each.memory for each in found if each.memory), default=0.0)
    radii = [max(2.5, LARGEST * sqrt(each.memory / most)) if each.memory else 4.0 for each in found]
    middles = [(x(each.speed), y(each.accuracy), r) for each, r in zip(found, radii)]
    sizes = [(len(each.name) * 5.0 + 2, 10.0) for each in found]
    within = Box(left, 12, width - 10, height - bottom)
    rings = [(x(each.speed), y(each.accuracy), y(each.pretrained)) for each in found if each.pretrained is not None]
    taken = [Box(at - 5, min(one, other) - 5, at + 5, max(one, other) + 5) for at, one, other in rings]
    if most:
        discs = [Box(at - r, above - r, at + r, above + r) for at, above, r in middles]
        discs += [Box(left, y(value) - 10, width, y(value) + 2) for _, value in lines]
        corner = free_corner(110, 2 * LARGEST, within, taken + discs)
        taken.append(corner)
        drawn.add_artist(_sizes(drawn, corner.left + LARGEST, height - corner.top - LARGEST, LARGEST))
        said = f"area: memory\nthis: {size(most)}"
        beside = (corner.left + 2 * LARGEST + 4, height - corner.top - LARGEST)
        drawn.annotate(said, beside, xycoords="figure points", va="center", fontsize=7, color=QUIET)
    labels = place(middles, sizes, within, taken)
    for each, middle, r, label in zip(found, middles, radii, labels):
        colour = _colour(each.kind)
        if each.pretrained is not None:
            ends = ([each.speed, each.speed], [each.accuracy, each.pretrained])
            drawn.plot(*ends, color=colour, linewidth=0.8)
            drawn.plot(
                [each.speed], [each.pretrained], "o", markerfacecolor="white", markeredgecolor=colour, markersize=5
            )
        face = (*_rgb(colour), 0.38) if each.memory else "none"
        drawn.scatter([each.speed], [each.accuracy], s=(2 * r) ** 2, facecolor=face, edgecolor=colour, linewidth=1.2)
        away = (label.x - middle[0], middle[1] - label.y)
        arrow = (
            {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0} if label.leads else None
        )
        drawn.annotate(
            each.name, (each.speed, each.accuracy), away, ha="center", va="center", arrowprops=arrow, **_OFFSET
        )
    drawn.set_xlabel(across.title)
    drawn.set_ylabel(up.title)
    return True


_OFFSET: dict[str, Any] = {"textcoords": "offset points", "annotation_clip": False}


def _sizes(drawn: "Axes", x: float, y: float, r: float) -> Any:
    """A circle of the largest area, in points from the lower left of the figure."""
    from matplotlib.patches import Circle
    from matplotlib.transforms import Affine2D

    figure: Any = drawn.get_figure()
    points = Affine2D().scale(1 / 72) + figure.dpi_scale_trans
    return Circle((x, y), r, transform=points, facecolor="none", edgecolor=QUIET, linewidth=0.8)


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[place_ : place_ + 2], 16) / 255 for place_ in (1, 3, 5))
    return red, green, blue


def _ranges(drawn: "Axes", left: float, right: float, low: float, high: float, across: ChartAxis) -> None:
    if across.factors:
        drawn.set_xscale("log")
    drawn.set_xlim(left, right)
    drawn.set_ylim(low, high)


def _panels(figure: "Figure", count: int, height: float, wide: int = 2) -> "list[Axes]":
    columns = min(wide, count)
    rows = ceil(count / columns)
    figure.set_size_inches(3.6 * columns, height * rows)
    made = figure.subplots(rows, columns, squeeze=False)
    flat: list[Axes] = [each for row in made for each in row]
    for unused in flat[count:]:
        unused.set_visible(False)
    return flat[:count]


def _intervals(results: Results, figure: "Figure") -> bool:
    tasks = [task for task in results.tasks if any(any(row.marks) for row in interval_rows(results, task)[0])]
    if not tasks:
        return False
    for task, drawn in zip(tasks, _panels(figure, len(tasks), 0.8 + 0.22 * len(results.models))):
        rows, lines = interval_rows(results, task)
        shown = [v for row in rows for m in row.marks if m for v in (m[0] - (m[1] or 0), m[0] + (m[1] or 0))]
        x = scale([*shown, *(value for _, value in lines)], 0, PANEL)
        drawn.set_xlim(x.low, x.high)
        levels = place_rows([(x(value), 3.4 * len(name)) for name, value in lines], PANEL)
        for (name, value), level in zip(lines, levels):
            drawn.axvline(value, color=QUIET, linewidth=0.8, linestyle="--")
            top: Any = ("data", "axes fraction")
            above = (0, 3 + 8 * level)
            drawn.annotate(name, (value, 1), above, xycoords=top, ha="center", fontsize=6, color=QUIET, **_OFFSET)
        for number, row in enumerate(rows):
            for later, each in enumerate(row.marks):
                if each is not None:
                    face = "white" if later else _colour(row.kind)
                    at = number + (0.15 * (2 * later - 1) if all(row.marks) else 0)
                    drawn.errorbar(
                        [each[0]],
                        [at],
                        xerr=each[1],
                        fmt="o",
                        markersize=4.5,
                        color=_colour(row.kind),
                        markerfacecolor=face,
                    )
        drawn.set_yticks(range(len(rows)), [row.name + ("" if any(row.marks) else " (failed)") for row in rows])
        drawn.set_ylim(len(rows) - 0.5, -0.5)
        drawn.set_xlabel(f"{task_title(task)}, accuracy in %")
    return True


def _lines(
    drawn: "Axes",
    lines: Sequence[ChartLine],
    across: ChartAxis,
    up: ChartAxis,
    levels: Sequence[tuple[str, float]] = (),
) -> None:
    """Lines, and horizontal ones of trivial predictors; the names of all stand to the right, where no line is."""
    for _, value in levels:
        drawn.axhline(value, color=QUIET, linewidth=0.8, linestyle="--")
    for line in lines:
        dash = (0, tuple(float(part) / 2 for part in line.dash.split())) if line.dash else "-"
        drawn.plot(*zip(*line.points), color=_colour(line.kind), linewidth=1.3, linestyle=dash)
    if across.factors:
        drawn.set_xscale("log")
    if up.factors:
        drawn.set_yscale("log")
    figure: Any = drawn.get_figure()
    # Names at the ends of lines, apart from each other; in pixels, which the axes know once they are laid out.
    figure.draw_without_rendering()
    far = drawn.get_xlim()[1]
    named = [(line.name, line.points[-1], _colour(line.kind)) for line in lines]
    named += [(name, (far, value), QUIET) for name, value in levels]
    ends = [drawn.transData.transform(point)[1] for _, point, _ in named]
    box = drawn.get_window_extent()
    apart = 8 / 72 * figure.dpi
    for (name, point, colour), end, place_ in zip(named, ends, spread(ends, apart, box.y0, box.y1)):
        away = (far, point[1])  # all in one column, right of the chart
        drawn.annotate(
            name, away, (5, (place_ - end) * 72 / figure.dpi), va="center", fontsize=7, color=colour, **_OFFSET
        )
    drawn.set_xlabel(across.title)
    drawn.set_ylabel(up.title)


def _learning(results: Results, figure: "Figure") -> bool:
    made = [(task, learning(results, task, "step")) for task in results.tasks]
    made = [(task, lines) for task, lines in made if lines]
    if not made:
        return False
    for (task, lines), drawn in zip(made, _panels(figure, len(made), 2.8)):
        across = ChartAxis(f"{task_title(task)}, steps")
        _lines(drawn, lines, across, ChartAxis("held-out accuracy, %"), interval_rows(results, task)[1])
    return True


def _efficiency(results: Results, figure: "Figure") -> bool:
    made = [(what, speed_lines(results, what)) for what in ("speed", "memory")]
    made = [(what, lines) for what, lines in made if any(len(line.points) > 1 for line in lines)]
    if not made:
        return False
    for (what, lines), drawn in zip(made, _panels(figure, len(made), 3.0)):
        across, up = axes(what)
        _lines(drawn, lines, across, up)
        drawn.set_xticks(results.lengths, [across.number(length) for length in results.lengths])
        low, high = drawn.get_ylim()
        steps = ratio_ticks(low, high, halves=up.halves)
        drawn.set_yticks(steps, [up.number(step) for step in steps])
        drawn.minorticks_off()
    return True
