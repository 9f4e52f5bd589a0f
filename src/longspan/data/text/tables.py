"""Read tables row by row, with line numbers: CSV, tab-separated, JSON, Parquet, and folders of text files."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from longspan.data.text import text_files
from longspan.data.text.hub_datasets import is_hub_dataset, read_dataset
from longspan.data.text.text_folders import folder_files
from longspan.errors import InvalidInput, Unsupported
from longspan.parsing import refusing

ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
SEPARATORS = (",", ";", "\t", "|")
LONGEST = 2**31 - 1  # characters of a field
SHOWN = 12  # most columns that an error names
SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class TableRow:
    """One row: its file and line, and its fields by the names of their columns."""

    path: Path
    line: int
    fields: dict[str, str]

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"


def format_of(path: Path) -> str:
    """The format of a table: hub, folder, csv, jsonl, json or parquet by its ending, and tsv for any other file."""
    if is_hub_dataset(path):
        return "hub"
    if path.is_dir():
        return "folder"
    return ENDINGS.get(ending(path), "tsv")


def ending(path: Path) -> str:
    """The ending of a file's name in lower case, without that of its compression."""
    return (Path(path.stem).suffix if path.suffix in text_files.PACKED else path.suffix).lower()


def is_table(path: Path) -> bool:
    """Whether a path is a table by its ending, a data set of Hugging Face's, or a folder of text files."""
    return path.is_dir() or is_hub_dataset(path) or ending(path) in ENDINGS


def rows(
    path: Path, wanted: Sequence[str] = (), columns: Sequence[str] | None = None, encoding: str | None = None
) -> Iterator[TableRow]:
    """The rows of a table with the `wanted` columns, which must exist; with all columns if none are named.

    A file that is not .csv, .json, .jsonl or .parquet is tab-separated, and quotes have no meaning in it. `columns`
    names the columns if the first line does not. The separator of a .csv is a comma or, if only another of `SEPARATORS`
    gives all columns in the first line, that one. A folder has the columns `text` and, if its files are in folders,
    `label`, the name of the file's folder. `hf:NAME` is a data set of the package `datasets` (see `hub_datasets`).
    """
    readers = {
        "hub": _hub_rows,
        "folder": _folder_rows,
        "json": _json_list,
        "jsonl": _json_lines,
        "parquet": _parquet_rows,
    }
    kind = format_of(path)
    if kind in readers:
        found = readers[kind](path, wanted, encoding)
    else:
        found = _separated(path, wanted, columns, encoding, kind)
    first = next(found, None)
    if first is None:
        raise InvalidInput(f"{path} has no rows")
    yield first
    yield from found


def _separated(
    path: Path, wanted: Sequence[str], columns: Sequence[str] | None, encoding: str | None, kind: str
) -> Iterator[TableRow]:
    records = _csv(path, wanted, columns, encoding) if kind == "csv" else _tabs(path, encoding)
    names = columns
    kept: list[tuple[int, str]] = []
    for line, fields in records:
        if names is None:
            if fields[0].lstrip("\ufeff").lstrip()[:2] in ('{"', "[{", "{'"):
                raise InvalidInput(f"{path}, line {line}: it begins like JSON; call the file .jsonl or .json")
            names = _names(fields)
            _check_columns(path, line, wanted, names)
            kept = _kept(names, wanted)
            continue
        kept = kept or _kept(names, wanted)
        if len(fields) < len(names):
            raise InvalidInput(f"{path}, line {line}: {len(fields)} fields, and {len(names)} columns are expected")
        yield TableRow(path, line, {name: fields[index] for index, name in kept})


def _kept(names: Sequence[str], wanted: Sequence[str]) -> list[tuple[int, str]]:
    return [(index, name) for index, name in enumerate(names) if not wanted or name in wanted]


def _lines(path: Path, encoding: str | None) -> Iterator[str]:
    """Lines of text; a decoding error suggests the option `encoding`."""
    with text_files.hinting():
        yield from text_files.lines(path, encoding)


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
    fields = {separator: _names(next(csv.reader([first], delimiter=separator), [])) for separator in SEPARATORS}
    if not wanted and columns is None:
        return max(SEPARATORS, key=lambda separator: len(fields[separator]))  # the first of the best
    for separator, names in fields.items():
        if set(wanted) <= set(names) if columns is None else len(names) == len(columns) > 1:
            return separator
    return max(SEPARATORS, key=lambda separator: len(fields[separator]))


def _names(fields: Sequence[str]) -> list[str]:
    return [name.removeprefix("\ufeff").strip() for name in fields]


def _json_lines(path: Path, wanted: Sequence[str], encoding: str | None) -> Iterator[TableRow]:
    for number, line in enumerate(_lines(path, encoding), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # also: nested too deep, a number of thousands of digits
            raise InvalidInput(f"{path}, line {number}: not JSON: {error}") from None
        yield _record(path, number, value, wanted)


def _json_list(path: Path, wanted: Sequence[str], encoding: str | None) -> Iterator[TableRow]:
    """The objects of a JSON list, parsed one by one, so that each has its line."""
    with text_files.hinting():
        text = text_files.whole(path, encoding)
    decoder = json.JSONDecoder()
    position = _after_space(text, 0)
    if text[position] != "[":
        raise InvalidInput(f"{path}, line 1: expected a list of objects; call a file with an object per line .jsonl")
    line, counted, position = 1, 0, _after_space(text, position + 1)
    while text[position : position + 1] != "]":
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise InvalidInput(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path}, line {line}: not JSON: {error}") from None
        yield _record(path, line, value, wanted)
        position = _after_space(text, position)
        if text[position : position + 1] == ",":
            position = _after_space(text, position + 1)
        elif text[position : position + 1] != "]":
            raise InvalidInput(f"{path}, line {text.count(chr(10), 0, position) + 1}: not JSON: expected , or ]")


def _after_space(text: str, position: int) -> int:
    match = SPACE.match(text, position)
    return position if match is None else match.end()


def _parquet_rows(path: Path, wanted: Sequence[str], encoding: str | None) -> Iterator[TableRow]:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise Unsupported(
            f"{path}: Parquet needs the package pyarrow; install it (pip install pyarrow), or save the table as CSV"
        ) from None
    with refusing(path, "is not a readable Parquet file"):
        file = parquet.ParquetFile(path)
        _check_columns(path, 1, wanted, file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches(columns=list(wanted) or None):
            for record in batch.to_pylist():
                number += 1
                yield _record(path, number, record, wanted)


def _hub_rows(path: Path, wanted: Sequence[str], encoding: str | None) -> Iterator[TableRow]:
    names, records = read_dataset(path)
    inner = {name.partition(".")[2]: name for name in reversed(names)}  # `en` may be meant for `translation.en`
    spelled = {name: name if name in names else inner.get(name, name) for name in wanted}
    _check_columns(path, 1, list(spelled.values()), names)
    for number, record in enumerate(records, start=1):
        fields = {name: record[spelled[name]] for name in wanted} if wanted else record
        yield _record(path, number, fields, wanted)


def _record(path: Path, line: int, value: Any, wanted: Sequence[str]) -> TableRow:
    if not isinstance(value, dict):
        raise InvalidInput(f"{path}, line {line}: expected a table, got {type(value).__name__}")
    for name in wanted:
        if name not in value:
            raise InvalidInput(f"{path}, line {line}, has no field {name!r}; {_existing(name, value)}")
    return TableRow(path, line, {name: _text(value[name]) for name in (wanted or value)})


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _folder_rows(path: Path, wanted: Sequence[str], encoding: str | None) -> Iterator[TableRow]:
    files = folder_files(path)
    names = ("text", "label") if files[0][1] is not None else ("text",)
    for name in wanted:
        if name not in names:
            reason = "its files are not in folders that name their labels" if name == "label" else "it is a folder"
            raise InvalidInput(f"{path} has no column {name!r}: {reason}; it has {', '.join(names)}")
    for file, label in files:
        with text_files.hinting():
            text = text_files.whole(file, encoding, empty=True)
        fields: Mapping[str, str] = {"text": text.strip(), **({} if label is None else {"label": label})}
        yield TableRow(file, 1, {name: fields[name] for name in (wanted or fields)})


def _check_columns(path: Path, line: int, wanted: Sequence[str], names: Sequence[str]) -> None:
    repeated = next((name for name in names if name and names.count(name) > 1 and name in wanted), None)
    if repeated is not None:
        raise InvalidInput(f"{path}, line {line}, has two columns {repeated!r}; give each column its own name")
    for name in wanted:
        if name in names:
            continue
        if any("\0" in each for each in names):
            raise InvalidInput(
                f'{path}, line {line}: has bytes of 0; if it is UTF-16, give the task encoding = "utf-16-le" '
                "(--encoding utf-16-le)"
            )
        raise InvalidInput(f"{path}, line {line}, has no column {name!r}; {_existing(name, names)}")


def _existing(name: str, names: Sequence[str] | Mapping[str, Any]) -> str:
    """The columns that exist, nearest first."""
    nearness = {other: SequenceMatcher(None, name.lower(), str(other).lower()).ratio() for other in names}
    nearest = sorted(nearness, key=lambda other: -nearness[other])
    more = f" and {len(nearest) - SHOWN} more" if len(nearest) > SHOWN else ""
    return f"it has {', '.join(map(repr, nearest[:SHOWN]))}{more}" if nearest else "it has none"


def exists(path: Path) -> bool:
    """Whether there is a file or folder; a data set of Hugging Face's is looked for when it is read."""
    return path.exists() or is_hub_dataset(path)


__all__ = ["TableRow", "ending", "exists", "format_of", "is_table", "rows"]
