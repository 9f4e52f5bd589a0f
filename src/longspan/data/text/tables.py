"""Read tables row by row, with line numbers: CSV, tab-separated and JSON lines."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from longspan.data.text import text_files
from longspan.errors import InvalidInput, suggest

JSON_LINES = (".jsonl", ".ndjson")
SEPARATORS = (",", ";", "\t", "|")
LONGEST = 2**31 - 1  # characters of a field


@dataclass(frozen=True)
class TableRow:
    """One row: its file and line, and its fields by the names of their columns."""

    path: Path
    line: int
    fields: dict[str, str]

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"


def rows(
    path: Path, wanted: Sequence[str], columns: Sequence[str] | None = None, encoding: str | None = None
) -> Iterator[TableRow]:
    """The rows of a file: .csv, .jsonl, or else tab-separated, where quotes have no meaning.

    `wanted` are the required columns. `columns` names them if the first line does not. The separator of a .csv is a
    comma or, if only another of `SEPARATORS` gives all columns in the first line, that one.
    """
    kind = Path(path.stem).suffix if path.suffix in text_files.PACKED else path.suffix
    if kind.lower() in JSON_LINES:
        yield from _json_rows(path, wanted, encoding)
        return
    found = _csv(path, wanted, columns, encoding) if kind.lower() == ".csv" else _tabs(path, encoding)
    names = columns
    seen = False
    for line, fields in found:
        if names is None:
            names = _names(fields)
            _check_columns(path, line, wanted, names)
            continue
        seen = True
        if len(fields) < len(names):
            raise InvalidInput(f"{path}, line {line}: {len(fields)} fields, and {len(names)} columns are expected")
        yield TableRow(path, line, dict(zip(names, fields)))
    if not seen:
        raise InvalidInput(f"{path} has no rows")


def _lines(path: Path, encoding: str | None) -> Iterator[str]:
    """Lines of text; a decoding error suggests the option `encoding`."""
    try:
        yield from text_files.lines(path, encoding)
    except InvalidInput as error:
        hint = '; if that is right, give the task encoding = "cp1252"' if "cp1252" in str(error) else ""
        raise InvalidInput(f"{error}{hint}") from None


def _tabs(path: Path, encoding: str | None) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(_lines(path, encoding), start=1):
        if line:
            yield number, line.split("\t")


def _csv(
    path: Path, wanted: Sequence[str], columns: Sequence[str] | None, encoding: str | None
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST)
    content = _lines(path, encoding)
    first = next(content, "")
    separator = _separator(first, wanted, columns)
    reader = csv.reader((f"{line}\n" for line in chain([first], content)), strict=True, delimiter=separator)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise InvalidInput(f"{path}, line {reader.line_num}: not CSV: {error}") from None


def _separator(first: str, wanted: Sequence[str], columns: Sequence[str] | None) -> str:
    """The separator of a CSV file, from its first line; a comma if unclear."""
    for separator in SEPARATORS:
        fields = _names(next(csv.reader([first], delimiter=separator), []))
        if set(wanted) <= set(fields) if columns is None else len(fields) == len(columns) > 1:
            return separator
    return SEPARATORS[0]


def _names(fields: Sequence[str]) -> list[str]:
    return [name.removeprefix("\ufeff").strip() for name in fields]


def _json_rows(path: Path, wanted: Sequence[str], encoding: str | None) -> Iterator[TableRow]:
    seen = False
    for number, line in enumerate(_lines(path, encoding), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:  # also: nested too deep, a number of thousands of digits
            raise InvalidInput(f"{path}, line {number}: not JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidInput(f"{path}, line {number}: expected a table, got {type(found).__name__}")
        for name in wanted:
            if name not in found:
                raise InvalidInput(f"{path}, line {number}: no field {name!r}: {suggest(name, found)}")
        seen = True
        kept = {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}
        yield TableRow(path, number, kept)
    if not seen:
        raise InvalidInput(f"{path} has no rows")


def _check_columns(path: Path, line: int, wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name in names:
            continue
        if any("\0" in each for each in names):
            raise InvalidInput(
                f'{path}, line {line}: has bytes of 0; if it is UTF-16, give the task encoding = "utf-16-le"'
            )
        raise InvalidInput(f"{path}, line {line}, has no column {name!r}: {suggest(name, names)}")


__all__ = ["TableRow", "rows"]
