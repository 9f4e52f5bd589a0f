"""Where things stand in a chart, so that none hides another."""

import re

from longspan.report.charts import Axis, Circle, scatter

SIZES = re.compile(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)" class="(\w+)"/>')
LINE = re.compile(r'<text x="[\d.]+" y="[\d.]+" class="([\w ]+)">chance 50.0</text>')


def circle(speed: float, accuracy: float) -> Circle:
    return Circle("a model", "dense", speed, accuracy, 1e9, "numbers")


def drawn(*circles: Circle, lines: tuple[tuple[str, float], ...] = ()) -> str:
    return str(scatter(circles, Axis("speed", factors=True), Axis("accuracy"), lines=lines, width=400, height=440))


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
