"""Label placement without overlap, and round numbers for axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, hypot, log10


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def shared(self, other: "Box") -> float:
        """The area of the overlap."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, width) * max(0.0, height)


@dataclass(frozen=True)
class Label:
    """The middle of a label, and whether it is so far away that it needs a leader line."""

    x: float
    y: float
    box: Box
    leads: bool


def place_labels(
    circles: Sequence[tuple[float, float, float]],
    sizes: Sequence[tuple[float, float]],
    within: Box,
    taken: Sequence[Box] = (),
    gap: float = 4,
) -> list[Label]:
    """One label for each circle (x, y, radius): greedily, the nearest position with the least overlap.

    `sizes` are widths and heights of the labels; `taken` are boxes that something else covers already.
    """
    discs = [Box(x - r, y - r, x + r, y + r) for x, y, r in circles] + list(taken)
    labels: dict[int, Label] = {}
    # Crowded circles first: they have the fewest free positions.
    crowd = [sum(_near(one, other) for other in circles) for one in circles]
    for number in sorted(range(len(circles)), key=lambda index: crowd[index]):
        (x, y, r), (width, height) = circles[number], sizes[number]
        best: tuple[float, Label] | None = None
        for step, extra in enumerate((0.0, 10.0, 22.0, 36.0, 52.0, 70.0)):
            for turn, (right, down) in enumerate(_AROUND):
                reach = r + gap + extra
                sideways = abs(right) == 1
                slant = 0.72 if sideways and down else 1.0
                middle_x = x + right * (reach * slant * sideways + width / 2)
                middle_y = y + down * (reach * slant + height / 2)
                box = Box(middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2)
                hidden = sum(box.shared(disc) for disc in discs)
                hidden += 3 * sum(box.shared(label.box) for label in labels.values())
                outside = width * height - box.shared(within)
                cost = hidden + 20 * outside + 14 * step + turn
                if best is None or cost < best[0]:
                    best = (cost, Label(middle_x, middle_y, box, step > 0))
        assert best is not None
        labels[number] = best[1]
    return [labels[number] for number in range(len(circles))]


# Directions (right, down) in which a label is tried; fractions shift it sideways above or below the circle.
_AROUND = (
    *((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)),
    *((0.5, -1), (-0.5, -1), (0.5, 1), (-0.5, 1), (0.95, -1), (-0.95, -1), (0.95, 1), (-0.95, 1)),
)


def _near(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """Between −1 and 0; lower for circles that are closer to each other."""
    distance = hypot(one[0] - other[0], one[1] - other[1])
    return -1 / (1 + max(0.0, distance - one[2] - other[2]) / 20)


def spread(positions: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """The positions, moved as little as needed to be at least `apart` from each other, within bounds."""
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    apart = min(apart, (high - low) / max(1, len(positions) - 1))
    moved_to = [min(high, max(low, positions[index])) for index in order]
    for _ in range(5000):
        moved = False
        for one in range(len(moved_to) - 1):
            lack = apart - (moved_to[one + 1] - moved_to[one])
            if lack > 1e-6:
                moved_to[one], moved_to[one + 1], moved = moved_to[one] - lack / 2, moved_to[one + 1] + lack / 2, True
        moved_to = [min(high, max(low, position)) for position in moved_to]
        if not moved:
            break
    result = [0.0] * len(positions)
    for rank, index in enumerate(order):
        result[index] = moved_to[rank]
    return result


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers within these bounds, for a linear axis."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** floor(log10(raw))
    step = next(power * times for times in (1, 2, 2.5, 5, 10) if power * times >= raw * 0.999)
    first = ceil(low / step - 1e-9)
    return [round(step * n, 10) for n in range(first, floor(high / step + 1e-9) + 1)]


def ratio_ticks(low: float, high: float, *, halves: bool = False) -> list[float]:
    """Round numbers for a logarithmic axis; `halves` are for memory sizes: 96, 128, 192 MiB."""
    if high / low > 1e5:  # powers of ten, each or every so many
        powers = list(range(ceil(log10(low)), floor(log10(high)) + 1))
        return [10.0**power for power in powers[:: ceil(len(powers) / 7)]]
    coarse = [2.0**power for power in range(-12, 21)]
    middle = [10.0**power * times for power in range(-6, 7) for times in (1, 2, 5)]
    fine = [10.0**power * times for power in range(-6, 7) for times in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)]
    if halves:
        middle = [power * times for power in coarse for times in (1, 1.5)]
        fine = [power * times for power in coarse for times in (1, 1.25, 1.5, 1.75)]
    candidates = [[tick for tick in grid if low <= tick <= high] for grid in (coarse, middle, fine)]
    chosen = next((grid for grid in candidates if len(grid) >= 3), candidates[-1]) or [low]
    return chosen[:: ceil(len(chosen) / 9)]


def label_rows(labels: Sequence[tuple[float, float]], width: float) -> list[int]:
    """The row of each label (middle, width), so that labels of one row do not touch."""
    taken: list[list[tuple[float, float]]] = []
    rows = []
    for middle, wide in labels:
        middle = min(width - wide / 2, max(wide / 2, middle))
        here = (middle - wide / 2 - 5, middle + wide / 2 + 5)
        level = next((n for n, row in enumerate(taken) if all(here[1] < a or here[0] > b for a, b in row)), len(taken))
        if level == len(taken):
            taken.append([])
        taken[level].append(here)
        rows.append(level)
    return rows


def free_corner(width: float, height: float, within: Box, taken: Sequence[Box], edge: float = 8) -> Box:
    """A box in the corner where it covers least of `taken`."""
    corners = []
    for left in (within.left + edge, within.right - edge - width):
        for top in (within.bottom - edge - height, within.top + edge):
            corners.append(Box(left, top, left + width, top + height))
    return min(corners, key=lambda corner: sum(corner.shared(box) for box in taken))
