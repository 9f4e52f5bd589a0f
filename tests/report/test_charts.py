"""Where things stand in a chart, so that none hides another."""

import re
from itertools import pairwise

from longspan.report.arena_speed import axes
from longspan.report.charts import ChartAxis, ChartLine, Circle, Interval, curves, intervals, scatter, split_lines
from longspan.report.labels import ratio_ticks

SIZES = re.compile(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)" class="(\w+)"/>')
LINE = re.compile(r'<text x="[\d.]+" y="[\d.]+" class="([\w ]+)">chance 50.0</text>')


def circle(speed: float, accuracy: float) -> Circle:
    return Circle("a model", "dense", speed, accuracy, 1e9, "numbers")


def drawn(*circles: Circle, lines: tuple[tuple[str, float], ...] = ()) -> str:
    return str(
        scatter(circles, ChartAxis("speed", factors=True), ChartAxis("accuracy"), lines=lines, width=400, height=440)
    )


def discs(chart: str, kind: str) -> list[tuple[float, float, float]]:
    return [(float(x), float(y), float(r)) for x, y, r, each in SIZES.findall(chart) if each == kind]


CORNERS = [circle(speed, accuracy) for speed in (1.0, 8.0) for accuracy in (20.0, 80.0)]


def test_the_sizes_of_memory_stand_in_a_free_corner() -> None:
    chart = drawn(CORNERS[0], CORNERS[1], CORNERS[2])
    assert 'viewBox="0 0 400 440"' in chart
    assert all(y < 220 and x > 200 for x, y, _ in discs(chart, "size"))


def test_where_no_corner_is_free_they_stand_below_the_chart() -> None:
    chart = drawn(*CORNERS)
    (height,) = re.findall(r'viewBox="0 0 400 ([\d.]+)"', chart)
    assert all(y - r >= 440 and y + r <= float(height) for _, y, r in discs(chart, "size"))
    assert len(discs(chart, "disc")) == 4


def test_a_line_has_its_name_at_the_end_where_no_circle_is() -> None:
    line = (("chance", 50.0),)
    (right,) = LINE.findall(drawn(circle(1.0, 50.0), circle(4.0, 80.0), lines=line))
    (left,) = LINE.findall(drawn(circle(4.0, 50.0), circle(1.0, 80.0), lines=line))
    assert "end" in right.split() and "end" not in left.split()


TEXTS = re.compile(r'<text x="([\d.]+)" y="([\d.]+)" class="([\w ]*)">([^<]+)</text>')


def test_no_name_stands_where_lines_are_drawn() -> None:
    lines = [ChartLine(f"model {n}", "dense", [(0.0, 20.0), (100.0, 40.0 + n)], ["a", "b"]) for n in range(6)]
    chart = curves(
        lines, ChartAxis("steps"), ChartAxis("accuracy"), "said", levels=[("majority", 41.0), ("first token", 43.5)]
    )
    (axis,) = re.findall(r'<line x1="44.0" y1="([\d.]+)" x2="([\d.]+)" y2="\1" class="axis"/>', chart)
    names = [(float(x), float(y), said) for x, y, _, said in TEXTS.findall(chart) if said[0] in "mf"]
    assert len(names) == 8 and all(x > float(axis[1]) for x, _, _ in names)
    heights = sorted(y for _, y, _ in names)
    assert all(after - before >= 13.9 for before, after in pairwise(heights))


def test_a_trivial_predictor_far_away_leaves_the_chart_to_the_models() -> None:
    lines = [("best trivial predictor", 40.4), ("majority class", 12.3)]
    shown, outside = split_lines([38.9, 41.3, 43.7], lines)
    assert shown == lines[:1] and outside == lines[1:]
    chart = str(
        scatter([circle(1.0, 38.9), circle(2.0, 43.7)], ChartAxis("speed", factors=True), ChartAxis("a"), lines=lines)
    )
    assert "best trivial predictor 40.4" in chart and "majority" not in chart
    heights = [y for _, y, _ in discs(chart, "disc")]
    assert abs(heights[0] - heights[1]) > 540 / 2  # half of the chart or more is where the models are


def test_memory_has_ticks_of_its_own_units() -> None:
    _, up = axes("memory")
    labels = [up.number(tick) for tick in ratio_ticks(15.0, 3000.0, halves=True)]
    assert labels == ["16 MiB", "32 MiB", "64 MiB", "128 MiB", "256 MiB", "512 MiB", "1 GiB", "2 GiB"]
    assert [up.number(tick) for tick in ratio_ticks(80.0, 200.0, halves=True)] == ["96 MiB", "128 MiB", "192 MiB"]


def test_names_of_trivial_predictors_hide_the_lines_behind_them() -> None:
    rows = [Interval("a model", "dense", [(60.0, 2.0, "numbers"), None])]
    chart = str(intervals(rows, [("majority", 50.7), ("ink", 51.2)], "said"))
    boxes = re.findall(r'<rect x="[\d.-]+" y="[\d.]+" width="[\d.]+" height="14.0" class="paper"/>', chart)
    assert len(boxes) == 2 and chart.index('class="paper"') > chart.rindex('class="mark-line"')
