"""Intervals against figures worked out by hand or read in tables."""

from itertools import pairwise

import pytest

from longspan.report.labels import Box, place_labels, ratio_ticks, spread, ticks
from longspan.report.statistics import mean_curve, score, standard_error, student


@pytest.mark.parametrize(("degrees", "value"), [(1, 12.7062), (2, 4.3027), (30, 2.0423), (31, 2.0395), (100, 1.9840)])
def test_points_of_student(degrees: int, value: float):
    assert student(degrees) == pytest.approx(value, abs=1e-4)


def test_a_score_over_seeds():
    found = score([0.40, 0.42, 0.44, 0.46], 1000)
    assert found.mean == pytest.approx(0.43) and found.deviation == pytest.approx(0.0258199, abs=1e-6)
    assert found.half == pytest.approx(3.1824 * 0.0258199 / 2, abs=1e-5) and found.seeds == 4
    assert found.error == pytest.approx(standard_error(0.43, 1000)) == pytest.approx(0.015656, abs=1e-6)
    assert found.above(0.38) and not found.above(0.39)


def test_a_score_of_one_seed():
    found = score([0.5], 2500)
    assert found.deviation is None and found.half == pytest.approx(0.0196, abs=1e-5)
    unknown = score([0.5], None)
    assert unknown.half is None and not unknown.above(0.0)


def test_the_mean_of_curves_reaches_as_far_as_all():
    found = mean_curve([[(0, 0.0), (10, 10.0)], [(0, 2.0), (5, 2.0), (20, 2.0)], []])
    assert found == [(0, 1.0), (5, 3.5), (10, 6.0)]
    assert mean_curve([[], []]) == [] and mean_curve([[(1, 3.0)]]) == [(1, 3.0)]


def test_round_numbers_on_axes():
    assert ticks(31.2, 58.4) == [35, 40, 45, 50, 55] or ticks(31.2, 58.4) == [40, 50]
    assert ratio_ticks(0.4, 5) == [0.5, 1, 2, 4] and ticks(3, 3) == [3]


def test_names_stand_apart():
    circles = [(100.0, 100.0, 10.0), (112.0, 100.0, 10.0), (124.0, 102.0, 10.0), (136.0, 101.0, 10.0)]
    labels = place_labels(circles, [(60.0, 14.0)] * 4, Box(0, 0, 300, 200))
    boxes = [label.box for label in labels]
    assert all(one.shared(other) == 0 for one in boxes for other in boxes if one is not other)
    assert all(box.left >= 0 and box.right <= 300 and box.top >= 0 and box.bottom <= 200 for box in boxes)


def test_names_at_the_ends_of_lines_are_spread():
    found = spread([50, 50, 51, 90], 14, 0, 100)
    assert (
        sorted(found) == pytest.approx(sorted(found))
        and min(b - a for a, b in zip(sorted(found), sorted(found)[1:])) > 13.9
    )
    assert spread([5], 14, 0, 100) == [5]


def test_two_dozen_names_in_a_heap_are_spread_out():
    found = sorted(spread([34.0 + number / 10 for number in range(24)], 14, 34, 416))
    assert all(after - before > 13.9 for before, after in pairwise(found)) and 34 <= found[0] <= found[-1] <= 416
