"""Keeps the detail of as many heads as a page has room for: those asked for first, then the most notable ones."""

from dataclasses import dataclass, field, replace

import numpy as np

from longspan.errors import InvalidOption
from longspan.inspect.details import size_of
from longspan.inspect.records import Budget, HeadRecord, ModuleRecord, Pyramid, Sums
from longspan.inspect.summary import LIMITS

DEFAULT_SIZE = 25_000_000
# Of a page's bytes, data before base64: its own text and the report take the rest. Maps hardly shrink by deflate.
SHARE = 0.68
OVERVIEW = 128  # cells on the longer side that every head keeps; fewer if there are very many heads
# Cells of heads with detail, cells of the others, whether sums are halved: the first that fits is taken.
STEPS = ((512, OVERVIEW, False), (256, OVERVIEW, False), (256, OVERVIEW, True), (128, 128, True), (64, 64, True))
AGGREGATES = 0.15  # share of the room for means and maxima over heads
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

    def offer(self, module: int, layer: int, record: HeadRecord, bytes_needed: int) -> list[tuple[int, int]]:
        """Puts a head on the shelf, and returns those that have to leave it: perhaps this one."""
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


def lighten(record: HeadRecord, most: int = OVERVIEW, *, detail: bool = False) -> HeadRecord:
    """A head with levels of at most `most` cells, and without its detail unless `detail`."""
    difference = record.difference
    if difference is not None:
        exact, change = trim(difference.exact, most), trim(difference.change, most)
        kept = difference.exact_detail if detail else None
        difference = replace(difference, exact_detail=kept, exact=exact, change=change)
    own = record.detail if detail else None
    return replace(record, detail=own, pyramid=trim(record.pyramid, most), difference=difference)


def fit(
    modules: list[ModuleRecord], size: int, shelf: "Shelf | None" = None
) -> tuple[tuple[ModuleRecord, ...], Budget]:
    """The modules made small enough for `size`: fewer fine levels, then halved sums, then fewer details."""
    room = size * SHARE
    aggregates = next(
        (most for most in LIMITS if sum(_aggregate_bytes(module, most) for module in modules) <= AGGREGATES * room),
        LIMITS[-1],
    )
    light = modules
    for fine, coarse, halved in STEPS:
        light = [_lighten_module(module, fine, coarse, aggregates, halved=halved) for module in modules]
        if sum(map(module_bytes, light)) <= room:
            break
    spent = sum(map(module_bytes, light))
    leaving = sorted(shelf.heads, key=lambda key: shelf.heads[key][0]) if shelf is not None else []
    while spent > room and leaving:
        number, head = leaving.pop(0)
        before = module_bytes(light[number])
        heads = tuple(lighten(each, 64) if each.index == head else each for each in light[number].heads)
        light[number] = replace(light[number], heads=heads)
        spent += module_bytes(light[number]) - before
    detailed = tuple(
        (number, head.index) for number, module in enumerate(light) for head in module.heads if head.detail is not None
    )
    count = sum(len(module.heads) for module in light)
    return tuple(light), Budget(size, spent, detailed, count - len(detailed))


def _lighten_module(module: ModuleRecord, fine: int, coarse: int, aggregates: int, *, halved: bool) -> ModuleRecord:
    heads = []
    for head in module.heads:
        small = lighten(head, coarse) if head.detail is None else lighten(head, fine, detail=True)
        heads.append(replace(small, sums=_halve(small.sums)) if halved else small)
    mean, largest = (None if each is None else trim(each, aggregates) for each in (module.mean, module.max))
    return replace(module, heads=tuple(heads), mean=mean, max=largest)


def _halve(sums: Sums) -> Sums:
    """The same in half the bytes: three digits."""
    kind = np.uint16 if len(sums.received) <= 1 << 16 else np.uint32
    return replace(
        sums,
        received=sums.received.astype(np.float16),
        entropy=sums.entropy.astype(np.float16),
        offsets=sums.offsets.astype(np.float16),
        special=sums.special.astype(np.float16),
        peak=sums.peak.astype(np.float16),
        peak_key=sums.peak_key.astype(kind),
    )


def _aggregate_bytes(module: ModuleRecord, most: int) -> int:
    return sum(pyramid_bytes(trim(each, most)) for each in (module.mean, module.max) if each is not None)


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


__all__ = ["DEFAULT_SIZE", "SHARE", "Shelf", "fit", "lighten", "module_bytes", "parse_size", "trim"]
