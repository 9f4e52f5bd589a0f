"""Tables of numbers and categories: what each column holds, and rows as numbers for a model.

A column whose values are all numbers is one of numbers, any other has categories. `ABSENT` spellings are missing values
in both. Columns with one value, without any, or with another text in nearly every row are left out, and said.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longspan.data.series_files import ABSENT, header_of, parse_number
from longspan.data.text import tables
from longspan.data.text.tables import TableRow
from longspan.errors import InvalidInput, suggest
from longspan.models.table_base import TableColumn

MOST_VALUES = 50  # categories that any column may have; more if rows share them
MISTYPED = 0.1  # share of values that are no numbers, up to which they are taken for mistakes


@dataclass(frozen=True)
class EncodedRows:
    """Rows as a model reads them."""

    numbers: np.ndarray  # (rows, numbers), scaled; NaN: missing
    categories: np.ndarray  # (rows, categories); 0: missing or unknown
    unknown: dict[str, int]  # by column: values that training did not have


def read_table(path: Path, encoding: str | None = None) -> tuple[list[str], list[TableRow]]:
    """The names of the columns, and all rows; a field that an object of JSON lacks is empty."""
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    if tables.format_of(path) in ("csv", "tsv"):
        names = header_of(path, encoding)
        return names, list(tables.rows(path, names, encoding=encoding))
    rows = list(tables.rows(path, [], encoding=encoding))
    names = list(dict.fromkeys(name for row in rows for name in row.fields))
    return names, [TableRow(row.path, row.line, {name: row.fields.get(name, "") for name in names}) for row in rows]


def check_names(path: Path, wanted: Sequence[str], names: Sequence[str]) -> None:
    """Refuses columns that a table does not have."""
    for name in wanted:
        if name not in names:
            raise InvalidInput(f"{path} has no column {name!r}: {suggest(name, names)}")


def is_missing(text: str) -> bool:
    """Whether a field stands for a missing value."""
    return text.strip().lower() in ABSENT


def find_columns(
    rows: Sequence[TableRow],
    names: Sequence[str],
    *,
    categorical: Sequence[str] = (),
    decimal: str = ".",
) -> tuple[tuple[TableColumn, ...], dict[str, str]]:
    """What each of these columns holds in training rows, and why some are left out."""
    columns, left_out = [], {}
    for name in names:
        texts = [row.fields[name].strip() for row in rows]
        present = Counter(text for text in texts if not is_missing(text))
        if len(present) < 2:
            left_out[name] = "it is empty" if not present else f"all of its values are {next(iter(present))!r}"
            continue
        numbers = {text: parse_number(text, decimal) for text in present}
        if name not in categorical and _has_numbers(rows, name, present, numbers):
            values = np.array([numbers[text] for text in texts if text in present], dtype=np.float64)
            deviation = float(values.std())
            columns.append(TableColumn(name=name, mean=float(values.mean()), deviation=deviation or 1.0))
        elif name not in categorical and len(present) > max(MOST_VALUES, sum(present.values()) / 2):
            left_out[name] = f"{len(present):,} different values in {len(rows):,} rows: a name or a text, no category"
        else:
            frequent = sorted(present, key=lambda text: (-present[text], text))
            columns.append(TableColumn(name=name, kind="category", values=tuple(frequent)))
    return tuple(columns), left_out


def _has_numbers(rows: Sequence[TableRow], name: str, present: Counter[str], numbers: dict[str, float | None]) -> bool:
    """Whether a column has numbers; a few values that are none are an error, as they are probably mistyped."""
    others = {text for text in present if numbers[text] is None}
    if not others:
        return True
    if sum(present[text] for text in others) > MISTYPED * sum(present.values()):
        return False
    row = next(row for row in rows if row.fields[name].strip() in others)
    raise InvalidInput(
        f"{row.where}: {name} is a column of numbers, and {row.fields[name].strip()[:40]!r} is none; correct it, leave "
        f"it empty if it is missing, or name the column by categorical"
    )


def encode_rows(rows: Sequence[TableRow], columns: Sequence[TableColumn], decimal: str = ".") -> EncodedRows:
    """Rows as numbers: scaled, and categories counted from 1 in the order of `values`."""
    unknown: Counter[str] = Counter()
    numbers, categories = [], []
    for column in columns:
        texts = [row.fields[column.name].strip() for row in rows]
        if column.kind == "number":
            values = np.array([_number(row, column, decimal) for row in rows], dtype=np.float64)
            numbers.append((values - column.mean) / column.deviation)
            continue
        places = {value: place for place, value in enumerate(column.values or (), start=1)}
        categories.append(np.array([places.get(text, 0) for text in texts], dtype=np.int64))
        unknown[column.name] += sum(text not in places and not is_missing(text) for text in texts)
    count = len(rows)
    return EncodedRows(
        np.stack(numbers, 1) if numbers else np.zeros((count, 0)),
        np.stack(categories, 1) if categories else np.zeros((count, 0), dtype=np.int64),
        {name: times for name, times in unknown.items() if times},
    )


def _number(row: TableRow, column: TableColumn, decimal: str) -> float:
    text = row.fields[column.name]
    if is_missing(text):
        return math.nan
    number = parse_number(text, decimal)
    if number is None:
        raise InvalidInput(
            f"{row.where}: {column.name} must be a number, not {text.strip()[:40]!r}; leave it empty if it is missing"
        )
    return number


__all__ = ["EncodedRows", "check_names", "encode_rows", "find_columns", "is_missing", "read_table"]
