"""Stencils for Pathfinder images: paddles in every direction and discs, as ink and as bits.

Every paddle is drawn once: its ends are pixels, so there are few directions, and paddles elsewhere are shifted copies.
The occupied pixels of an image are one long integer with a bit for each pixel.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil, cos, pi, sin
from typing import NamedTuple

import numpy as np

from longspan.errors import InvalidOption

FIRST_ANGLES = 90  # directions of a first paddle; later ones point at a pixel of a circle
COLLISION = (0.7, 0.9, 1.1)  # levels of masks: two paddles collide where their masks sum to 1.8 (0.7 + 1.1, …)
LAYERS = len(COLLISION) + 1  # of bits: a mask for each level, and the pixels that no paddle may point at


@dataclass(frozen=True)
class Drawing:
    """All parameters of an image; lengths in pixels."""

    size: int
    contour_length: int  # paddles of a target
    distractor_length: int  # paddles of each of the others
    distractors: int
    seed_distance: int
    marker_radius: float
    paddle_length: int
    thickness: float
    margins: tuple[int, ...]  # half the gap between paddles, and the distance to others; drawn for each image
    continuity: float
    curve_contrasts: tuple[float, ...]
    paddle_contrasts: tuple[float, ...]
    antialias: int
    padding: int

    def __post_init__(self) -> None:
        if 4 * self.seed_distance > self.size - 1:
            raise InvalidOption(
                f"seed_distance must leave a pixel that is twice as far from every border: at most "
                f"{(self.size - 1) // 4} with size {self.size}, not {self.seed_distance}"
            )


class Turn(NamedTuple):
    """The possible next directions after one direction: their end pixels and probabilities."""

    directions: tuple[int, ...]
    ends: tuple[int, ...]  # as bits, relative to the start of the paddle
    weights: tuple[float, ...]
    sums: tuple[float, ...]
    every: int  # all ends at once


class Stencils:
    """Paddles and discs in every direction, as ink and as bits, for one margin.

    A row of the grid holds its layers one after another, so that the neighbourhood of a pixel is one range of bits. The
    grid has a border, so that nothing wraps around to the other side.
    """

    def __init__(self, drawing: Drawing, margin: int) -> None:
        self.drawing, self.margin = drawing, margin
        length, reach = drawing.paddle_length, drawing.paddle_length + margin
        self.edge = ceil(length + drawing.thickness / 2 + 2 * margin) + 2
        self.wide = drawing.size + 2 * self.edge
        self.row = LAYERS * self.wide  # bits
        self.window = (1 << (2 * self.edge + 1) * self.row) - 1
        self.ink_edge = (
            ceil(max(length + drawing.thickness / 2, drawing.marker_radius)) + 3
        )  # the Lanczos filter reaches 3 pixels
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
        self.probes: list[int] = []  # masks with reversed layers, so that levels that sum to 1.8 coincide
        for angle in self.angles:
            self._add(angle)
        self.turns = [self._turn(angle) for angle in self.angles]
        inside = np.zeros((self.wide, self.wide), dtype=bool)
        inside[self._inside(), self._inside()] = True
        self.frame = self._layer(~inside, LAYERS - 1)  # the outside, where no paddle may point
        self.wide_layer = self._layer(inside, LAYERS - 1)
        self.disc = self._downsampled(
            self._distances(0, 0, self.ink_edge) <= drawing.marker_radius * drawing.antialias + 1e-6
        )

    def _inside(self) -> slice:
        return slice(self.edge + self.drawing.padding, self.edge + self.drawing.size - self.drawing.padding)

    def bit(self, row: int, column: int) -> int:
        """The bit of a pixel in the layer of pixels that no paddle may point at."""
        return ((row + self.edge) * LAYERS + LAYERS - 1) * self.wide + column + self.edge

    def free(self, bits: int) -> int:
        """The number of pixels that a paddle may point at."""
        return (self.wide_layer & ~bits).bit_count()

    def _distances(self, angle: float, length: float, edge: int) -> np.ndarray:
        """The distance of each fine pixel from a line that starts in the middle."""
        reach = (edge + 3) * self.drawing.antialias
        rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1]
        down, right = sin(angle), cos(angle)
        along = np.clip(rows * down + columns * right, 0, length)
        distance: np.ndarray = np.hypot(rows - along * down, columns - along * right)
        return distance

    def _downsampled(self, fine: np.ndarray) -> np.ndarray:
        times = self.drawing.antialias
        matrix = _lanczos((len(fine) // 2) // times - 3, times)
        reduced: np.ndarray = matrix @ fine.astype(np.float64) @ matrix.T
        return reduced.astype(np.float32)

    def _layer(self, on: np.ndarray, layer: int) -> int:
        bits = 0
        for row, column in np.argwhere(on).tolist():
            bits |= 1 << (row * LAYERS + layer) * self.wide + column
        return bits

    def _add(self, angle: float) -> None:
        drawing, times = self.drawing, self.drawing.antialias
        half = max(drawing.thickness * times, 1) / 2 + 1e-6
        distances = self._distances(angle, drawing.paddle_length * times, self.ink_edge)
        self.ink.append(np.maximum(self._downsampled(distances <= half), 0))
        distances = self._distances(angle, drawing.paddle_length * times, self.edge)
        mask = self._downsampled(distances <= half + self.margin * times)
        layers = [mask >= level - 1e-6 for level in COLLISION]
        masks = sum(self._layer(on, number) for number, on in enumerate(layers))
        self.bits.append(masks | self._layer(_dilate(mask >= 0.5, self.margin), LAYERS - 1))
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


def pixel(angle: float, distance: float) -> tuple[int, int]:
    """The pixel at a distance in a direction, as rows down and columns to the right."""
    return round(sin(angle) * distance), round(cos(angle) * distance)


def _lanczos(reach: int, times: int) -> np.ndarray:
    """Reduces 2 · (reach + 3) · times + 1 pixels to 2 · reach + 1; pixel 0 stays in the middle of pixel 0."""
    coarse = np.arange(-reach, reach + 1)[:, None]
    fine = np.arange(-(reach + 3) * times, (reach + 3) * times + 1)[None]
    far = fine / times - coarse
    weights = np.where(np.abs(far) < 3, np.sinc(far) * np.sinc(far / 3), 0)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _dilate(on: np.ndarray, radius: int) -> np.ndarray:
    dilated = on.copy()
    for row in range(-radius, radius + 1):
        for column in range(-radius, radius + 1):
            if np.hypot(row, column) <= radius:
                dilated |= np.roll(on, (row, column), axis=(0, 1))
    return dilated


@lru_cache(maxsize=16)
def stencils(drawing: Drawing, margin: int) -> Stencils:
    return Stencils(drawing, margin)


__all__ = ["COLLISION", "FIRST_ANGLES", "LAYERS", "Drawing", "Stencils", "Turn", "pixel", "stencils"]
