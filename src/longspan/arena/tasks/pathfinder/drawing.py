"""Draw Pathfinder images: two dashed curves that never touch, shorter ones around them, and two discs.

A dash is called a paddle. Whether a paddle fits is one `&` of integers that have a bit for each pixel (see `stencils`),
so that an image costs a few thousand operations on integers.
"""

from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate
from math import hypot, pi
from random import Random
from typing import NamedTuple

import numpy as np

from longspan.arena.tasks.pathfinder.stencils import FIRST_ANGLES, Drawing, pixel, stencils
from longspan.errors import InvalidOption

VERSION = 1  # of the images; part of the cache key
PADDLE_TRIES, DISTRACTOR_TRIES, PAIR_TRIES = 3, 5, 100_000
LEAST_FREE = 0.01  # share of the area that must be free for another distractor


class Paddle(NamedTuple):
    """The start of a paddle, and the number of its direction."""

    row: int
    column: int
    direction: int


class Curve:
    """The paddles of a curve, and the bits of the last one, which the next one may touch."""

    __slots__ = ("last", "paddles")

    def __init__(self, paddle: Paddle, last: int) -> None:
        self.paddles, self.last = [paddle], last


@dataclass(frozen=True)
class DrawnImage:
    """An image and its parts."""

    pixels: np.ndarray  # uint8 (size, size)
    label: int  # 1: both discs are on one curve
    margin: int
    targets: tuple[tuple[Paddle, ...], tuple[Paddle, ...]]
    distractors: tuple[tuple[Paddle, ...], ...]
    discs: tuple[tuple[int, int], tuple[int, int]]  # rows and columns


class Pen:
    """Draws one image; `bits` are the occupied pixels."""

    def __init__(self, drawing: Drawing, random: Random) -> None:
        self.drawing, self.random = drawing, random
        self.stencils = stencils(drawing, random.choice(drawing.margins))
        self.bits = self.stencils.frame

    def first(self, row: int, column: int, bits: int) -> Curve | None:
        """The first paddle of a curve, in any direction."""
        of = self.stencils
        origin = row * of.row + column
        direction = of.circle + int(self.random.random() * FIRST_ANGLES)
        near = bits >> origin
        if near >> of.ends[direction] & 1 or near & of.probes[direction]:
            return None
        return Curve(Paddle(row, column, direction), of.bits[direction] << origin)

    def extend(self, curve: Curve, bits: int, other: int) -> bool:
        """Adds a paddle; `bits` and `other` are all occupied pixels but those of the curve's last paddle."""
        of, random = self.stencils, self.random.random
        row, column, direction = curve.paddles[-1]
        down, right = of.steps[direction]
        row, column = row + down, column + right
        low = self.drawing.padding
        high = self.drawing.size - low
        if not (low <= row < high and low <= column < high):
            return False
        origin = row * of.row + column
        near = bits >> origin & of.window | other >> origin & of.window
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
                curve.last = of.bits[direction] << origin
                return True
        return False

    def pair(self) -> tuple[Curve, Curve] | None:
        """Both targets, which grow in turns; None if one got stuck."""
        drawing, random = self.drawing, self.random.random
        bits = self.stencils.frame
        low, high = drawing.padding, drawing.size - drawing.padding
        border = max(2 * drawing.seed_distance, low)
        row, column = (border + int(random() * (drawing.size - 2 * border)) for _ in range(2))
        angle = random() * 2 * pi
        down, right = pixel(angle, drawing.seed_distance)
        first = self.first(row, column, bits)
        if first is None or not (low <= row + down < high and low <= column + right < high):
            return None
        second = self.first(row + down, column + right, bits | first.last)
        if second is None:
            return None
        for _ in range(drawing.contour_length - 1):
            for curve, other in ((first, second), (second, first)):
                last = curve.last
                if not self.extend(curve, bits, other.last):
                    return None
                bits |= last
        self.bits = bits | second.last  # as in the original, a distractor may touch the tip of the first curve
        return first, second

    def distractor(self) -> Curve | None:
        """A shorter curve, if there is room."""
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

    def tip(self, paddle: Paddle) -> tuple[int, int]:
        """The end of a paddle."""
        down, right = self.stencils.tips[paddle.direction]
        return paddle.row + down, paddle.column + right

    def pixels(self, inks: list[tuple[Paddle, float]], discs: tuple[tuple[int, int], ...]) -> np.ndarray:
        """The image: the brightest ink at each pixel, scaled to 0 … 255."""
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


class Balance:
    """Chooses labels so that the distance of the discs has the same distribution in both classes.

    The original chooses labels at random. The end of a curve is nearer to its own start than to the other curve's: with
    contours of 6 paddles, the distance alone predicts 59 % of the labels, in the original's images as in ours.
    """

    def __init__(self) -> None:
        self.more: dict[int, int] = {}  # at each distance, how many more images have label 1 than 0

    def label(self, same: float, other: float, coin: int) -> int:
        """The label that makes the counts more even, given both possible distances; `coin` breaks ties."""
        on_same, on_other = int(same), int(other)
        surplus = self.more.get(on_same, 0) + self.more.get(on_other, 0)
        label = coin if surplus == 0 else int(surplus < 0)
        distance = on_same if label else on_other
        self.more[distance] = self.more.get(distance, 0) + (1 if label else -1)
        return label


def draw(drawing: Drawing, random: Random, balance: Balance | None = None) -> DrawnImage:
    """Draws one image; only the second disc depends on the label, which is random or chosen by `balance`."""
    label = int(random.random() * 2)
    pen = Pen(drawing, random)
    for _ in range(PAIR_TRIES):
        pair = pen.pair()
        if pair is not None:
            break
    else:
        raise InvalidOption(
            f"two curves of {drawing.contour_length} paddles could not be drawn in {PAIR_TRIES} tries on "
            f"{drawing.size} × {drawing.size} pixels: take a smaller contour_length, paddle_length or margins, "
            "or a larger size"
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
    start = pair[chosen].paddles[0]
    same, other = (pen.tip(pair[which].paddles[-1]) for which in (chosen, 1 - chosen))
    if balance is not None:
        far = [hypot(row - start.row, column - start.column) for row, column in (same, other)]
        label = balance.label(far[0], far[1], label)
    discs = ((start.row, start.column), same if label else other)
    return DrawnImage(
        pen.pixels(inks, discs),
        label,
        pen.stencils.margin,
        (tuple(pair[0].paddles), tuple(pair[1].paddles)),
        tuple(tuple(curve.paddles) for curve in others),
        discs,
    )


__all__ = ["VERSION", "Balance", "DrawnImage", "Paddle", "Pen", "draw"]
