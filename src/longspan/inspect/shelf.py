"""Keeps the detail of as many heads as a page has room for: those asked for first, then the most notable ones."""

from dataclasses import dataclass, field, replace

import numpy as np

from longspan.errors import InvalidOption
from longspan.inspect.details import size_of
from longspan.inspect.records import Budget, HeadRecord, Level, ModuleRecord, Pyramid

DEFAULT_SIZE = 25_000_000
# Of a page's bytes, data before base64: its own text and the report take the rest. Maps hardly shrink by deflate.
SHARE = 0.68
OVERVIEW = 128  # cells on the longer side that every head keeps; fewer if there are very many heads
UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3}


def parse_size(text: str) -> int:
    """Bytes of a size such as 25MB."""
    number, unit = text.strip().upper(), ""
    while number and not (number[-1].isdecimal() or number[-1] == "."):
        number, unit = number[:-1], number[-1] + unit
    try:
        size = float(number) * UNITS[unit.strip()]
    except (ValueError, KeyError):
        raise InvalidOption(f"--size must be a number of bytes such as 25MB, not {text!r}") from None
    if not 1_000_000 <= size <= 2_000_000_000:
        raise InvalidOption(f"--size must be from 1MB to 2GB, not {text}")
    return int(size)


def pyramid_bytes(pyramid: Pyramid | None) -> int:
    levels = () if pyramid is None else pyramid.levels
    return sum(array.nbytes for level in levels for array in (level.max, level.mean, level.low) if array is not None)


def trim(pyramid: Pyramid, most: int) -> Pyramid:
    """The pyramid without levels of more than `most` cells on a side; its coarsest level always stays."""
    kept = [level for level in pyramid.levels if max(level.max.shape) <= most]
    return replace(pyramid, levels=tuple(kept or pyramid.levels[-1:]))


@dataclass
class Shelf:
    """Heads with detail, within `room` bytes."""

    room: float
    first: frozenset[tuple[int, int]] = frozenset()  # (layer, head) that the user asked for
    heads: dict[tuple[int, int], tuple[float, int]] = field(default_factory=dict)  # (module, head): notability, bytes
    spent: int = 0

    def offer(self, module: int, layer: int, record: HeadRecord) -> list[tuple[int, int]]:
        """Puts a head on the shelf, and returns those that have to leave it: perhaps this one."""
        bytes_needed = size_of(record.detail) + pyramid_bytes(record.pyramid)
        if record.difference is not None:
            bytes_needed += size_of(record.difference.exact_detail)
        asked = (layer, record.index) in self.first
        self.heads[module, record.index] = (np.inf if asked else notability(record), bytes_needed)
        self.spent += bytes_needed
        leaving = []
        while self.spent > self.room and self.heads:
            least = min(self.heads, key=lambda key: self.heads[key][0])
            self.spent -= self.heads.pop(least)[1]
            leaving.append(least)
        return leaving


def notability(record: HeadRecord) -> float:
    """How much a head stands out: by mass at one place, or by its error."""
    sums = record.sums
    special = float(sums.special.max()) if len(sums.special) else 0.0
    standing_out = max(sums.previous, sums.next, sums.self, 0.5 * sums.first, 0.5 * special)
    error = 0.0 if record.difference is None else record.difference.errors.variation
    return standing_out + error


def lighten(record: HeadRecord, most: int = OVERVIEW) -> HeadRecord:
    """A head without detail."""
    difference = record.difference
    if difference is not None:
        exact, change = trim(difference.exact, most), trim(difference.change, most)
        difference = replace(difference, exact_detail=None, exact=exact, change=change)
    return replace(record, detail=None, pyramid=trim(record.pyramid, most), difference=difference)


def fit(modules: list[ModuleRecord], size: int) -> tuple[tuple[ModuleRecord, ...], Budget]:
    """The modules with overviews coarse enough for `size`, and what they take."""
    light = [_lighten_module(module, OVERVIEW) for module in modules]
    if sum(map(module_bytes, light)) > size * SHARE:
        light = [_lighten_module(module, 64) for module in modules]
    detailed = tuple(
        (number, head.index) for number, module in enumerate(light) for head in module.heads if head.detail is not None
    )
    heads = sum(len(module.heads) for module in light)
    return tuple(light), Budget(size, sum(map(module_bytes, light)), detailed, heads - len(detailed))


def _lighten_module(module: ModuleRecord, most: int) -> ModuleRecord:
    heads = tuple(head if head.detail is not None else lighten(head, most) for head in module.heads)
    mean, largest = (None if each is None else trim(each, 256) for each in (module.mean, module.max))
    return replace(module, heads=heads, mean=mean, max=largest)


def module_bytes(module: ModuleRecord) -> int:
    """The bytes of a module's arrays."""
    total = pyramid_bytes(module.mean) + pyramid_bytes(module.max)
    for head in module.heads:
        total += pyramid_bytes(head.pyramid) + size_of(head.detail)
        total += sum(value.nbytes for value in vars(head.sums).values() if isinstance(value, np.ndarray))
        if head.difference is not None:
            difference = head.difference
            total += pyramid_bytes(difference.exact) + pyramid_bytes(difference.change)
            total += size_of(difference.exact_detail)
    return total


__all__ = ["DEFAULT_SIZE", "SHARE", "Level", "Shelf", "fit", "lighten", "module_bytes", "parse_size", "trim"]
