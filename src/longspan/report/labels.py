"""Where names stand so that they hide neither each other nor what they name, and round numbers for axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def shared(self, other: "Box") -> float:
        """The area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, width) * max(0.0, height)


@dataclass(frozen=True)
class Label:
    """The middle of a name, and whether it is so far away that a line must lead to it."""

    x: float
    y: float
    box: Box
    leads: bool


def place(
    circles: Sequence[tuple[float, float, float]],
    sizes: Sequence[tuple[float, float]],
    within: Box,
    taken: Sequence[Box] = (),
    gap: float = 4,
) -> list[Label]:
    """A name of each size for each circle (x, y, radius): the nearest place that hides least, one after another.

    `taken` is covered by something else already.
    """
    discs = [Box(x - r, y - r, x + r, y + r) for x, y, r in circles] + list(taken)
    found: dict[int, Label] = {}
    # Those in a crowd have the fewest places to go.
    crowd = [sum(_near(one, other) for other in circles) for one in circles]
    for number in sorted(range(len(circles)), key=lambda index: crowd[index]):
        (x, y, r), (width, height) = circles[number], sizes[number]
        best: tuple[float, Label] | None = None
        for step, extra in enumerate((0.0, 10.0, 22.0, 36.0, 52.0, 70.0)):
            for turn, (right, down) in enumerate(_AROUND):
                reach = r + gap + extra
                beside = abs(right) == 1
                slant = 0.72 if beside and down else 1.0
                middle_x = x + right * (reach * slant * beside + width / 2)
                middle_y = y + down * (reach * slant + height / 2)
                box = Box(middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2)
                hidden = sum(box.shared(disc) for disc in discs)
                hidden += 3 * sum(box.shared(label.box) for label in found.values())
                outside = width * height - box.shared(within)
                cost = hidden + 20 * outside + 14 * step + turn
                if best is None or cost < best[0]:
                    best = (cost, Label(middle_x, middle_y, box, step > 0))
        assert best is not None
        found[number] = best[1]
    return [found[number] for number in range(len(circles))]


# To the right, down; by half: above or below, and shifted by a quarter of the name.
_AROUND = (
    *((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)),
    *((0.5, -1), (-0.5, -1), (0.5, 1), (-0.5, 1), (0.95, -1), (-0.95, -1), (0.95, 1), (-0.95, 1)),
)


def _near(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """More for circles that are close to each other, as a number below 0."""
    distance = ((one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2) ** 0.5
    return -1 / (1 + max(0.0, distance - one[2] - other[2]) / 20)


def spread(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """The same places, moved as little as it takes for each to be so far from the next, within bounds."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    apart = min(apart, (high - low) / max(1, len(places) - 1))
    found = [min(high, max(low, places[index])) for index in order]
    for _ in range(5000):
        moved = False
        for one in range(len(found) - 1):
            lack = apart - (found[one + 1] - found[one])
            if lack > 1e-6:
                found[one], found[one + 1], moved = found[one] - lack / 2, found[one + 1] + lack / 2, True
        found = [min(high, max(low, each)) for each in found]
        if not moved:
            break
    result = [0.0] * len(places)
    for position, index in enumerate(order):
        result[index] = found[position]
    return result


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers within these bounds."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** floor(log10(raw))
    step = next(power * times for times in (1, 2, 2.5, 5, 10) if power * times >= raw * 0.999)
    first = ceil(low / step - 1e-9)
    return [round(step * n, 10) for n in range(first, floor(high / step + 1e-9) + 1)]


def ratio_ticks(low: float, high: float, *, halves: bool = False) -> list[float]:
    """The same for an axis on which each step is a factor; `halves` are for sizes of memory: 96, 128, 192 MiB."""
    coarse = [2.0**power for power in range(-12, 21)]
    middle = [10.0**power * times for power in range(-6, 7) for times in (1, 2, 5)]
    fine = [10.0**power * times for power in range(-6, 7) for times in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)]
    if halves:
        middle = [power * times for power in coarse for times in (1, 1.5)]
        fine = [power * times for power in coarse for times in (1, 1.25, 1.5, 1.75)]
    made = [[tick for tick in some if low <= tick <= high] for some in (coarse, middle, fine)]
    found = next((some for some in made if len(some) >= 3), made[-1]) or [low]
    return found[:: ceil(len(found) / 9)]


def place_rows(labels: Sequence[tuple[float, float]], width: float) -> list[int]:
    """In which row each label (middle, width) stands, so that none touches another."""
    taken: list[list[tuple[float, float]]] = []
    found = []
    for middle, wide in labels:
        middle = min(width - wide / 2, max(wide / 2, middle))
        here = (middle - wide / 2 - 5, middle + wide / 2 + 5)
        level = next((n for n, row in enumerate(taken) if all(here[1] < a or here[0] > b for a, b in row)), len(taken))
        if level == len(taken):
            taken.append([])
        taken[level].append(here)
        found.append(level)
    return found


def free_corner(width: float, height: float, within: Box, taken: Sequence[Box], edge: float = 8) -> Box:
    """A box in the corner in which it hides least."""
    made = []
    for left in (within.left + edge, within.right - edge - width):
        for top in (within.bottom - edge - height, within.top + edge):
            made.append(Box(left, top, left + width, top + height))
    return min(made, key=lambda box: sum(box.shared(each) for each in taken))
