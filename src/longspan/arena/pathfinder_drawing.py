"""Draws Pathfinder images: two dashed curves that never run into each other, shorter ones around them, and two discs.

Everything a paddle can be is drawn once: its ends are pixels, so there are few directions, and a paddle elsewhere is
the same moved by whole pixels. What is occupied is then one long integer with a bit for each pixel, and whether a
paddle fits is one `&`: a picture costs some thousand operations on integers, and nothing is ever dilated again.
"""

from bisect import bisect
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil, cos, pi, sin
from random import Random
from typing import NamedTuple

import numpy as np

from longspan.errors import InvalidOption

VERSION = 1  # of what is drawn; another one is never read from a cache of this one
FIRST_ANGLES = 90  # of a first paddle, whose direction is any; later ones point at a pixel of a circle
PADDLE_TRIES, DISTRACTOR_TRIES, PAIR_TRIES = 3, 5, 100_000
LEAST_FREE = 0.01  # of the area, for another distractor
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


class Paddle(NamedTuple):
    """Where one begins, and which of the directions it has."""

    row: int
    column: int
    direction: int


class Curve:
    """The paddles of a curve, and the bits of the last, which the next one may touch."""

    __slots__ = ("last", "paddles")

    def __init__(self, paddle: Paddle, last: int) -> None:
        self.paddles, self.last = [paddle], last


@dataclass(frozen=True)
class Drawn:
    """An image, and what it was drawn from."""

    pixels: np.ndarray  # uint8 (size, size)
    label: int  # 1 where both discs are on one curve
    margin: int
    targets: tuple[tuple[Paddle, ...], tuple[Paddle, ...]]
    distractors: tuple[tuple[Paddle, ...], ...]
    discs: tuple[tuple[int, int], tuple[int, int]]  # rows and columns


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
        ends = [*map(tuple, circle.tolist()), *(_pixel(angle, reach) for angle in first.tolist())]
        self.ends = [self.bit(*end) for end in ends]
        self.steps = [_pixel(angle, length + 2 * margin) for angle in self.angles]
        self.tips = [_pixel(angle, length) for angle in self.angles]
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
        return np.hypot(rows - along * down, columns - along * right)

    def _reduced(self, fine: np.ndarray) -> np.ndarray:
        times = self.drawing.antialias
        matrix = _lanczos((len(fine) // 2) // times - 3, times)
        return (matrix @ fine.astype(np.float64) @ matrix.T).astype(np.float32)

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


def _pixel(angle: float, far: float) -> tuple[int, int]:
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


class Pen:
    """Draws one image; `bits` are of all that is there."""

    def __init__(self, drawing: Drawing, random: Random) -> None:
        self.drawing, self.random = drawing, random
        self.stencils = stencils(drawing, random.choice(drawing.margins))
        self.bits = self.stencils.frame

    def first(self, row: int, column: int, bits: int) -> Curve | None:
        """The first paddle of a curve, in any direction."""
        of = self.stencils
        place = row * of.row + column
        direction = of.circle + int(self.random.random() * FIRST_ANGLES)
        near = bits >> place
        if near >> of.ends[direction] & 1 or near & of.probes[direction]:
            return None
        return Curve(Paddle(row, column, direction), of.bits[direction] << place)

    def extend(self, curve: Curve, bits: int, beside: int) -> bool:
        """One more paddle; `bits` and `beside` are of all there is but the curve's last paddle."""
        of, random = self.stencils, self.random.random
        row, column, direction = curve.paddles[-1]
        down, right = of.steps[direction]
        row, column = row + down, column + right
        low = self.drawing.padding
        high = self.drawing.size - low
        if not (low <= row < high and low <= column < high):
            return False
        place = row * of.row + column
        near = bits >> place & of.window | beside >> place & of.window
        directions, ends, weights, sums, every = of.turns[direction]
        if near & every:
            free = [number for number, end in enumerate(ends) if not near >> end & 1]
            if not free:
                return False
            directions = tuple([directions[number] for number in free])
            sums = tuple(accumulate([weights[number] for number in free]))
        for _ in range(PADDLE_TRIES):
            direction = directions[min(bisect(sums, random() * sums[-1]), len(directions) - 1)]
            if not of.probes[direction] & near:
                curve.paddles.append(Paddle(row, column, direction))
                curve.last = of.bits[direction] << place
                return True
        return False

    def pair(self) -> tuple[Curve, Curve] | None:
        """Both targets, which grow in turns; or nothing, where one got stuck."""
        drawing, random = self.drawing, self.random.random
        bits = self.stencils.frame
        low, high = drawing.padding, drawing.size - drawing.padding
        least = max(2 * drawing.seed_distance, low)
        row, column = (least + int(random() * (drawing.size - 2 * least)) for _ in range(2))
        angle = random() * 2 * pi
        down, right = _pixel(angle, drawing.seed_distance)
        one = self.first(row, column, bits)
        if one is None or not (low <= row + down < high and low <= column + right < high):
            return None
        two = self.first(row + down, column + right, bits | one.last)
        if two is None:
            return None
        for _ in range(drawing.contour_length - 1):
            for curve, beside in ((one, two), (two, one)):
                last = curve.last
                if not self.extend(curve, bits, beside.last):
                    return None
                bits |= last
        self.bits = bits | two.last  # as in the original, the first's tip is not kept: a distractor may touch it
        return one, two

    def distractor(self) -> Curve | None:
        """A shorter curve wherever there is room."""
        of, size, random = self.stencils, self.drawing.size, self.random.random
        for _ in range(DISTRACTOR_TRIES):
            if of.free(self.bits) < LEAST_FREE * size**2:
                return None
            row, column = int(random() * size), int(random() * size)
            while self.bits >> of.bit(row, column) & 1:
                row, column = int(random() * size), int(random() * size)
            curve, bits = self.first(row, column, self.bits), self.bits
            while curve is not None and len(curve.paddles) < self.drawing.distractor_length:
                last = curve.last
                if not self.extend(curve, bits, 0):
                    curve = None
                bits |= last
            if curve is not None:
                self.bits = bits | curve.last
                return curve
        return None

    def pixels(self, inks: list[tuple[Paddle, float]], discs: tuple[tuple[int, int], ...]) -> np.ndarray:
        """The brightest of all that covers a pixel, stretched to 0 … 255."""
        of, size = self.stencils, self.drawing.size
        edge, across = of.ink_edge, 2 * of.ink_edge + 1
        canvas = np.zeros((size + 2 * edge, size + 2 * edge), dtype=np.float32)
        for paddle, contrast in inks:
            under = canvas[paddle.row : paddle.row + across, paddle.column : paddle.column + across]
            np.maximum(under, of.ink[paddle.direction] * np.float32(contrast), out=under)
        for row, column in discs:
            under = canvas[row : row + across, column : column + across]
            np.maximum(under, of.disc, out=under)
        inner = canvas[edge : edge + size, edge : edge + size]
        low = inner.min()
        scaled = (inner - low) * (255 / (inner.max() - low))
        return np.asarray(np.rint(scaled).astype(np.uint8))


def draw(drawing: Drawing, random: Random) -> Drawn:
    """One image; its label is drawn first, and nothing but the place of the second disc depends on it."""
    label = int(random.random() * 2)
    pen = Pen(drawing, random)
    for _ in range(PAIR_TRIES):
        pair = pen.pair()
        if pair is not None:
            break
    else:
        raise InvalidOption(
            f"two curves of {drawing.contour_length} paddles were not drawn in {PAIR_TRIES} tries on {drawing.size} × "
            f"{drawing.size} pixels: take a smaller contour_length, paddle_length or margins, or a larger size"
        )
    others = [curve for curve in (pen.distractor() for _ in range(drawing.distractors)) if curve is not None]
    inks: list[tuple[Paddle, float]] = []
    for curve in pair:
        contrast = random.choice(drawing.curve_contrasts)
        inks += [(paddle, contrast * random.choice(drawing.paddle_contrasts)) for paddle in curve.paddles]
    for curve in others:
        contrast = random.choice(drawing.curve_contrasts)
        inks += [(paddle, contrast) for paddle in curve.paddles]
    chosen = int(random.random() * 2)
    start, end = pair[chosen].paddles[0], pair[chosen if label else 1 - chosen].paddles[-1]
    down, right = pen.stencils.tips[end.direction]
    discs = ((start.row, start.column), (end.row + down, end.column + right))
    return Drawn(
        pen.pixels(inks, discs),
        label,
        pen.stencils.margin,
        (tuple(pair[0].paddles), tuple(pair[1].paddles)),
        tuple(tuple(curve.paddles) for curve in others),
        discs,
    )


__all__ = ["VERSION", "Drawing", "Drawn", "Paddle", "Stencils", "draw", "stencils"]
