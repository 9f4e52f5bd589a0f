"""Tables on the terminal, and short forms of numbers, sizes and limits."""

import os
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from longspan.cli.terminal import Console

WIDE = 100_000  # width of a file or a pipe: lines are never folded
NARROW = 8  # least width of a column that can fold
LIMITS = (("≥", "low"), (">", "above"), ("≤", "high"), ("<", "below"))


class Output(Console):
    """Standard output. Tables fold to the width of a terminal; a file or a pipe gets whole lines.

    The environment variable COLUMNS sets the width of either.
    """

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, width=width)
        if width is None and not self.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
            self.width = WIDE

    def print(self, *objects: Any, **options: Any) -> None:
        for item in objects:
            if isinstance(item, Table):
                _let_fold(item, self.width)
        super().print(*objects, **options)


def output() -> Output:
    """A console for the current standard output."""
    return Output()


def _let_fold(table: Table, width: int) -> None:
    """Fold cells instead of cutting them, even in `no_wrap` columns when the table does not fit."""
    needed = 0
    for column in table.columns:
        column.overflow = "fold"
        cells = [Text.from_markup(cell) if isinstance(cell, str) else cell for cell in (column.header, *column.cells)]
        widest = max(cell_len(line) for cell in cells for line in str(cell).split("\n"))
        needed += 2 + (widest if column.no_wrap else min(widest, NARROW))
    if needed > width:
        for column in table.columns:
            column.no_wrap, column.min_width = False, None


def limits(item: dict[str, Any]) -> str:
    """The choices of an option, or its bounds."""
    if item["choices"]:
        return ", ".join(item["choices"])
    bounds = [f"{word} {item[key]:g}" for word, key in LIMITS if item.get(key) is not None]
    return " ".join(bounds)


def short_number(number: float) -> str:
    """Three digits and a prefix: 1.23 T."""
    return _short(number, 1000.0, ("", " k", " M", " G", " T", " P", " E"))


def short_bytes(number: float) -> str:
    """Three digits and a unit: 1.23 GiB."""
    return _short(number, 1024.0, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"))


def short_seconds(number: float) -> str:
    """Three digits and a unit: 1.23 ms."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e-9:.3g} ns"


def _short(number: float, step: float, units: tuple[str, ...]) -> str:
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number, power = number / step, power + 1
    return f"{number:.3g}{units[power]}"
