"""Tables in text files: CSV, tab-separated and JSON lines, row by row with the line each stands on."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from longspan.data import text
from longspan.errors import InvalidInput, suggest

JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Row:
    """One row: its file and line, and its fields by the names of their columns."""

    path: Path
    line: int
    fields: dict[str, str]

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"


def rows(path: Path, wanted: Sequence[str], columns: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows of a file, by how its name ends: .csv, .jsonl, or else tabs between fields, where quotes are letters.

    `wanted` are the columns that must be there. `columns` names them where the first line does not.
    """
    kind = Path(path.stem).suffix if path.suffix in text.PACKED else path.suffix
    if kind.lower() in JSON_LINES:
        yield from _json_rows(path, wanted)
        return
    found = _csv(path) if kind.lower() == ".csv" else _tabs(path)
    names = columns
    seen = False
    for line, fields in found:
        if names is None:
            names = [name.removeprefix("\ufeff").strip() for name in fields]
            _check_columns(path, wanted, names)
            continue
        seen = True
        if len(fields) < len(names):
            raise InvalidInput(f"{path}, line {line}: {len(fields)} fields, and {len(names)} columns are expected")
        yield Row(path, line, dict(zip(names, fields)))
    if not seen:
        raise InvalidInput(f"{path} has no rows")


def _tabs(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.lines(path), start=1):
        if line:
            yield number, line.split("\t")


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{line}\n" for line in text.lines(path)), strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise InvalidInput(f"{path}, line {reader.line_num}: not CSV: {error}") from None


def _json_rows(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    seen = False
    for number, line in enumerate(text.lines(path), start=1):
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
        yield Row(path, number, kept)
    if not seen:
        raise InvalidInput(f"{path} has no rows")


def _check_columns(path: Path, wanted: Sequence[str], names: Sequence[str]) -> None:
    for name in wanted:
        if name not in names:
            raise InvalidInput(f"{path} has no column {name!r}: {suggest(name, names)}")


__all__ = ["Row", "rows"]
