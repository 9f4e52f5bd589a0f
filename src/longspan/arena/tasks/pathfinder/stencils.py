"""What Pathfinder images are drawn with: paddles in every direction and discs, as ink and as bits.

Everything a paddle can be is drawn once: its ends are pixels, so there are few directions, and a paddle elsewhere is
the same moved by whole pixels. What is taken is one long integer with a bit for each pixel.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil, cos, pi, sin
from typing import NamedTuple

import numpy as np

from longspan.errors import InvalidOption

FIRST_ANGLES = 90  # of a first paddle, whose direction is any; later ones point at a pixel of a circle
COLLISION = (0.7, 0.9, 1.1)  # of masks: two collide where they sum to 1.8, so 0.7 with 1.1, and so on
LAYERS = len(COLLISION) + 1  # of bits: masks at each of these, and what no paddle may point at


@dataclass(frozen=True)
class Drawing:
    """Everything that an image depends on, but chance; lengths in pixels."""

    size: int
    contour_length: int  # paddles of a target
    distractor_length: int  # paddles of each of the others
    distractors: int
    seed_distance: int
    marker_radius: float
    paddle_length: int
    thickness: float
    margins: tuple[int, ...]  # half the gap between paddles, and how far others keep away; one is drawn for an image
    continuity: float
    curve_contrasts: tuple[float, ...]
    paddle_contrasts: tuple[float, ...]
    antialias: int
    padding: int

    def __post_init__(self) -> None:
        if 4 * self.seed_distance > self.size - 1:
            raise InvalidOption(
                f"seed_distance must leave a place that is twice as far from every border: at most "
                f"{(self.size - 1) // 4} with size {self.size}, not {self.seed_distance}"
            )


class Turn(NamedTuple):
    """Where the next paddle may point after one direction: directions, pixels at their ends, and chances."""

    directions: tuple[int, ...]
    ends: tuple[int, ...]  # bits, from the paddle's beginning
    weights: tuple[float, ...]
    sums: tuple[float, ...]
    every: int  # all ends at once


class Stencils:
    """Paddles and discs in every direction, as ink and as bits, for one margin.

    A row of the grid of bits has each of its layers in turn, so that what is near a pixel is one stretch of bits. The
    grid has an edge, so that nothing which leaves it comes in on the other side.
    """

    def __init__(self, drawing: Drawing, margin: int) -> None:
        self.drawing, self.margin = drawing, margin
        length, reach = drawing.paddle_length, drawing.paddle_length + margin
        self.edge = ceil(length + drawing.thickness / 2 + 2 * margin) + 2
        self.wide = drawing.size + 2 * self.edge
        self.row = LAYERS * self.wide  # bits
        self.window = (1 << (2 * self.edge + 1) * self.row) - 1
        self.ink_edge = ceil(max(length + drawing.thickness / 2, drawing.marker_radius)) + 3  # Lanczos reaches 3 far
        rows, columns = np.mgrid[-reach - 1 : reach + 2, -reach - 1 : reach + 2]
        on = np.abs(np.hypot(rows, columns) - reach) < 0.5
        circle = np.stack([rows[on], columns[on]], axis=1)
        self.circle = len(circle)
        first = np.arange(FIRST_ANGLES) * 2 * pi / FIRST_ANGLES
        self.angles = [*np.arctan2(circle[:, 0], circle[:, 1]).tolist(), *first.tolist()]
        ends = [*map(tuple, circle.tolist()), *(pixel(angle, reach) for angle in first.tolist())]
        self.ends = [self.bit(*end) for end in ends]
        self.steps = [pixel(angle, length + 2 * margin) for angle in self.angles]
        self.tips = [pixel(angle, length) for angle in self.angles]
        self.ink: list[np.ndarray] = []
        self.bits: list[int] = []
        self.probes: list[int] = []  # masks with their layers upside down, so that those which sum to 1.8 meet
        for angle in self.angles:
            self._add(angle)
        self.turns = [self._turn(angle) for angle in self.angles]
        inside = np.zeros((self.wide, self.wide), dtype=bool)
        inside[self._inside(), self._inside()] = True
        self.frame = self._layer(~inside, LAYERS - 1)  # what is outside, where no paddle may point
        self.wide_layer = self._layer(inside, LAYERS - 1)
        self.disc = self._reduced(self._far(0, 0, self.ink_edge) <= drawing.marker_radius * drawing.antialias + 1e-6)

    def _inside(self) -> slice:
        return slice(self.edge + self.drawing.padding, self.edge + self.drawing.size - self.drawing.padding)

    def bit(self, row: int, column: int) -> int:
        """Of a pixel, in the layer of what no paddle may point at."""
        return ((row + self.edge) * LAYERS + LAYERS - 1) * self.wide + column + self.edge

    def free(self, bits: int) -> int:
        """How many pixels a paddle may point at."""
        return (self.wide_layer & ~bits).bit_count()

    def _far(self, angle: float, length: float, edge: int) -> np.ndarray:
        """How far each fine pixel is from a line that begins in the middle."""
        reach = (edge + 3) * self.drawing.antialias
        rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1]
        down, right = sin(angle), cos(angle)
        along = np.clip(rows * down + columns * right, 0, length)
        distance: np.ndarray = np.hypot(rows - along * down, columns - along * right)
        return distance

    def _reduced(self, fine: np.ndarray) -> np.ndarray:
        times = self.drawing.antialias
        matrix = _lanczos((len(fine) // 2) // times - 3, times)
        reduced: np.ndarray = matrix @ fine.astype(np.float64) @ matrix.T
        return reduced.astype(np.float32)

    def _layer(self, on: np.ndarray, layer: int) -> int:
        found = 0
        for row, column in np.argwhere(on).tolist():
            found |= 1 << (row * LAYERS + layer) * self.wide + column
        return found

    def _add(self, angle: float) -> None:
        drawing, times = self.drawing, self.drawing.antialias
        half = max(drawing.thickness * times, 1) / 2 + 1e-6
        far = self._far(angle, drawing.paddle_length * times, self.ink_edge)
        self.ink.append(np.maximum(self._reduced(far <= half), 0))
        far = self._far(angle, drawing.paddle_length * times, self.edge)
        mask = self._reduced(far <= half + self.margin * times)
        layers = [mask >= level - 1e-6 for level in COLLISION]
        masks = sum(self._layer(on, number) for number, on in enumerate(layers))
        self.bits.append(masks | self._layer(_dilated(mask >= 0.5, self.margin), LAYERS - 1))
        self.probes.append(sum(self._layer(on, number) for number, on in enumerate(reversed(layers))))

    def _turn(self, angle: float) -> Turn:
        turns = []
        for direction in range(self.circle):
            turn = abs((self.angles[direction] - angle + pi) % (2 * pi) - pi)
            weight = max(0.0, cos(min(self.drawing.continuity * turn, pi / 2))) ** 2
            if weight > 1e-9:
                turns.append((direction, self.ends[direction], weight))
        directions, ends, weights = zip(*turns)
        return Turn(directions, ends, weights, tuple(accumulate(weights)), sum(1 << end for end in ends))


def pixel(angle: float, far: float) -> tuple[int, int]:
    """The pixel that is nearest to so far in a direction, as rows down and columns to the right."""
    return round(sin(angle) * far), round(cos(angle) * far)


def _lanczos(reach: int, times: int) -> np.ndarray:
    """Reduces 2 · (reach + 3) · times + 1 pixels to 2 · reach + 1; pixel 0 stays in the middle of pixel 0."""
    coarse = np.arange(-reach, reach + 1)[:, None]
    fine = np.arange(-(reach + 3) * times, (reach + 3) * times + 1)[None]
    far = fine / times - coarse
    weights = np.where(np.abs(far) < 3, np.sinc(far) * np.sinc(far / 3), 0)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _dilated(on: np.ndarray, radius: int) -> np.ndarray:
    found = on.copy()
    for row in range(-radius, radius + 1):
        for column in range(-radius, radius + 1):
            if np.hypot(row, column) <= radius:
                found |= np.roll(on, (row, column), axis=(0, 1))
    return found


@lru_cache(maxsize=16)
def stencils(drawing: Drawing, margin: int) -> Stencils:
    return Stencils(drawing, margin)


__all__ = ["COLLISION", "FIRST_ANGLES", "LAYERS", "Drawing", "Stencils", "Turn", "pixel", "stencils"]
