from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from longspan.arena.tasks.pathfinder import drawing as pathfinder_drawing
from longspan.arena.tasks.pathfinder import shortcuts as pathfinder_shortcuts
from longspan.arena.tasks.pathfinder.drawing import Balance, DrawnImage, Paddle, draw
from longspan.arena.tasks.pathfinder.stencils import COLLISION, LAYERS, Drawing, stencils
from longspan.arena.tasks.pathfinder.task import Pathfinder, PathX
from longspan.arena.tasks.registry import DataFolders, build
from longspan.errors import InvalidOption

EASY = {"contour_length": 6, "distractors": 5}


@pytest.fixture(scope="module")
def drawing() -> Drawing:
    return Pathfinder.Options(**EASY).drawing


@pytest.fixture(scope="module")
def drawn(drawing: Drawing) -> list[DrawnImage]:
    random, balance = Random("test"), Balance()
    return [draw(drawing, random, balance) for _ in range(2000)]


def tip(drawing: Drawing, paddle: Paddle, margin: int) -> tuple[int, int]:
    down, right = stencils(drawing, margin).tips[paddle.direction]
    return paddle.row + down, paddle.column + right


def filled(size: int, pixels: set[tuple[int, int]], start: tuple[int, int]) -> set[tuple[int, int]]:
    """What is reached from `start` over pixels that touch."""
    found, todo = {start}, [start]
    while todo:
        row, column = todo.pop()
        for near in ((row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)):
            if near in pixels and near not in found:
                found.add(near)
                todo.append(near)
    return found


def line(one: tuple[int, int], two: tuple[int, int]) -> set[tuple[int, int]]:
    steps = max(abs(two[0] - one[0]), abs(two[1] - one[1]), 1)
    at = np.linspace(one, two, steps + 1)
    return {(round(row), round(column)) for row, column in at.tolist()}


def polyline(drawing: Drawing, paddles: tuple[Paddle, ...], margin: int) -> set[tuple[int, int]]:
    points = [point for each in paddles for point in ((each.row, each.column), tip(drawing, each, margin))]
    return set().union(*(line(one, two) for one, two in pairwise(points)))


def test_half_of_the_images_have_discs_on_one_curve(drawn: list[DrawnImage]) -> None:
    assert abs(np.mean([each.label for each in drawn]) - 0.5) < 0.04


def test_following_the_target_from_one_disc_gives_the_label(drawing: Drawing, drawn: list[DrawnImage]) -> None:
    for each in drawn[:300]:
        start, end = each.discs
        curves = [polyline(drawing, paddles, each.margin) for paddles in each.targets]
        first = next(
            number for number, paddles in enumerate(each.targets) if (paddles[0].row, paddles[0].column) == start
        )
        reached = filled(drawing.size, curves[first], start)
        assert reached == curves[first]
        tips = [tip(drawing, paddles[-1], each.margin) for paddles in each.targets]
        assert (end == tips[first]) == bool(each.label) and end in tips
        if each.label:
            assert end in reached


def test_masks_of_targets_never_overlap(drawing: Drawing, drawn: list[DrawnImage]) -> None:
    for each in drawn[:300]:
        of = stencils(drawing, each.margin)
        masks = []
        for paddles in each.targets:
            assert len(paddles) == 6
            masks.append([(of.bits[p.direction], of.probes[p.direction], p.row * of.row + p.column) for p in paddles])
        for bits, _, place in masks[0]:
            for _, probe, other in masks[1]:
                assert not bits << place & probe << other


def test_masks_are_looked_up_as_their_sums_are(drawing: Drawing) -> None:
    of = stencils(drawing, 1)
    side = 2 * of.edge + 1
    for one, two in ((0, 3), (5, 5), (20, 1)):
        layers = []
        for bits in (of.bits[one], of.bits[two]):
            on = [
                [
                    [bits >> ((row * LAYERS + layer) * of.wide + column) & 1 for column in range(side)]
                    for row in range(side)
                ]
                for layer in range(len(COLLISION))
            ]
            layers.append(np.array(on, dtype=bool))
        apart = not any((layers[0][number] & layers[1][-1 - number]).any() for number in range(len(COLLISION)))
        assert apart == (not of.bits[one] & of.probes[two])


def test_the_padding_stays_empty(drawing: Drawing, drawn: list[DrawnImage]) -> None:
    for each in drawn[:300]:
        for paddles in (*each.targets, *each.distractors):
            for paddle in paddles:
                assert all(1 <= at <= 30 for at in (paddle.row, paddle.column, *tip(drawing, paddle, each.margin)))
        assert each.pixels.min() == 0 and each.pixels.max() == 255


def test_beginnings_are_the_seed_distance_apart(drawing: Drawing, drawn: list[DrawnImage]) -> None:
    for each in drawn[:300]:
        one, two = (paddles[0] for paddles in each.targets)
        assert abs(np.hypot(one.row - two.row, one.column - two.column) - 7) <= 0.75
        assert 14 <= one.row <= 17 and 14 <= one.column <= 17


def test_turns_are_as_the_continuity_allows() -> None:
    sharp, smooth = (stencils(Pathfinder.Options(continuity=each).drawing, 1) for each in (1.0, 1.8))
    for of, most in ((sharp, 90), (smooth, 50)):
        for direction in range(of.circle):
            turn = of.turns[direction]
            angles = np.degrees([of.angles[each] - of.angles[direction] for each in turn.directions])
            assert np.abs((angles + 180) % 360 - 180).max() <= most + 1e-6
            assert turn.weights[turn.directions.index(direction)] == pytest.approx(1)


def test_targets_are_three_quarters_as_bright_as_distractors(drawing: Drawing) -> None:
    pen = pathfinder_drawing.Pen(drawing, Random(0))
    both = pen.pixels([(Paddle(8, 8, 0), 1.5), (Paddle(24, 24, 0), 2.0)], ())
    assert both[16:].max() == 255 and both[:16].max() == 191


def shortcut(drawn: list[DrawnImage]) -> float:
    pixels, labels = np.stack([each.pixels for each in drawn]), np.array([each.label for each in drawn])
    values, half = pathfinder_shortcuts.measures(pixels, 1.5), len(drawn) // 2
    return float((pathfinder_shortcuts.learned(values[:half], labels[:half], values[half:]) == labels[half:]).mean())


def test_ink_components_and_distance_do_not_predict_the_label(drawn: list[DrawnImage]) -> None:
    assert shortcut(drawn) < 0.547  # three standard errors of 1000 images


def test_with_random_labels_the_distance_predicts_the_label(drawing: Drawing) -> None:
    random = Random("coin")
    assert shortcut([draw(drawing, random) for _ in range(2000)]) > 0.55


def test_measures_of_known_images() -> None:
    pixels = np.zeros((1, 16, 16), dtype=np.uint8)
    pixels[0, 2:5, 2:5] = pixels[0, 10:13, 8:11] = 255  # two discs, and two pixels that touch at a corner
    pixels[0, 0, 15] = pixels[0, 1, 14] = 255
    ink, components, distance = pathfinder_shortcuts.measures(pixels, 1.0)[0]
    assert (ink, components) == (20, 3) and distance == pytest.approx(10)
    known = np.array([[0.0], [1], [2], [10], [11], [12]])
    assert pathfinder_shortcuts.learned(known, np.array([0, 0, 0, 1, 1, 1]), np.array([[1.5], [11.5]])).tolist() == [
        0,
        1,
    ]


def test_splits_are_the_same_with_any_number_of_processes(tmp_path: Path) -> None:
    options = {"size": 16, "train": 30, "held_out": 5, "test": 5}
    task = build("pathfinder", options)
    one = task.splits(DataFolders(None, tmp_path / "one"), seed=3)
    two = task.splits(DataFolders(None, tmp_path / "two", processes=2), seed=3)
    assert one.notes["hashes"] == two.notes["hashes"] and one.train.digest() == two.train.digest()
    other = task.splits(DataFolders(None, tmp_path / "one"), seed=4)
    fewer = build("pathfinder", {**options, "train": 10}).splits(DataFolders(None, tmp_path / "one"), seed=3)
    assert other.test.digest() != one.test.digest() == fewer.test.digest()
    assert (one.vocabulary, one.classes, one.length, one.padded, one.grid) == (256, 2, 256, False, (16, 16))
    assert len(one.train) == 30 and len(one.train.sequence(0)) == 256 and one.train.tokens.dtype == np.uint8
    assert set(task.baselines(one)) == {"majority", "ink_components_distance", "bag_of_pixels"}


def test_shards_do_not_depend_on_the_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longspan.arena.tasks.pathfinder.task.SHARD_PIXELS", 256 * 8)
    task = build("pathfinder", {"size": 16, "train": 20, "held_out": 1, "test": 1})
    one, two = (task.splits(DataFolders(None, tmp_path / str(count), processes=count)) for count in (1, 2))
    assert one.train.digest() == two.train.digest()


def test_options_are_as_the_recipe_has_them() -> None:
    drawing = Pathfinder.Options().drawing
    assert (drawing.contour_length, drawing.distractor_length, drawing.distractors) == (14, 4, 5)
    drawing = PathX.Options().drawing
    assert (drawing.size, drawing.seed_distance, drawing.distractors, drawing.margins) == (128, 20, 8, (2, 3))
    assert (
        Pathfinder.Options(size=256).drawing.distractors == 7 and Pathfinder.Options(size=64).drawing.distractors == 5
    )
    small = Pathfinder.Options(size=24).drawing
    assert (small.contour_length, small.seed_distance) == (6, 4)


def test_an_impossible_drawing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOption, match=r"seed_distance .* at most 7 with size 32, not 9"):
        Pathfinder.Options(seed_distance=9)
    monkeypatch.setattr(pathfinder_drawing, "PAIR_TRIES", 50)
    with pytest.raises(InvalidOption, match="two curves of 40 paddles could not be drawn in 50 tries on 16 × 16"):
        draw(Pathfinder.Options(size=16, contour_length=40).drawing, Random(0))
    with pytest.raises(InvalidOption, match="did you mean 'contour_length'"):
        build("pathfinder", {"contour_lenght": 6})
