"""The folder of a grid: `grid.json` is the plan, `results.jsonl` has a line for each finished cell."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from longspan import files
from longspan.arena.runs.cell import Cell, Record, finite
from longspan.arena.runs.grid import Arguments, check_cells, differences
from longspan.data.json_lines import parse, skipped
from longspan.errors import InvalidInput
from longspan.train.run import Run

GRID, RESULTS, CELLS = "grid.json", "results.jsonl", "cells"
VERSION = 1


@dataclass(frozen=True)
class Read:
    """The content of a results file."""

    records: list[Record]
    notes: list[str]  # what was skipped, and why
    size: int  # bytes of the file
    torn: int  # bytes of an incomplete last line


def read_records(path: Path) -> Read:
    """The records of a file, which may be missing; lines that are not records are skipped and noted."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Read([], [], 0, 0)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    lines = content.split(b"\n")
    torn = lines.pop()  # whatever follows the last line break
    records, wrong = list[Record](), list[tuple[int, str]]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = parse(line)
        except InvalidInput as error:
            if number == len(lines) and not torn:  # a full disk or a power failure leaves such a last line
                torn = line + b"\n"
            else:
                wrong.append((number, str(error)))
            continue
        try:
            records.append(Record.read(values))
        except InvalidInput as error:
            wrong.append((number, str(error)))
    notes = [skipped(path.name, wrong)] if wrong else []
    notes += [f"the last line of {path.name} was cut short and is dropped"] if torn else []
    return Read(records, notes, len(content), len(torn))


class Folder:
    """The results of one grid, safe against a crash of the process that writes them."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda line: None) -> None:
        self.path, self.warn = path, warn

    @contextmanager
    def held(self) -> Iterator[None]:
        """Locks the folder against other processes."""
        with ExitStack() as stack:
            try:
                stack.enter_context(Run(self.path).held())
            except OSError as error:  # such as a full disk
                raise InvalidInput(f"{self.path} cannot be written: {error.strerror}") from None
            yield

    def begin(self, arguments: Arguments, cells: Sequence[Cell]) -> list[Cell]:
        """The cells to run: those of the existing plan if there is one, which must have the same arguments."""
        grid = self.path / GRID
        if grid.exists():
            return self.planned(arguments)
        if (self.path / RESULTS).exists():
            raise InvalidInput(f"{self.path} has {RESULTS} and no {GRID}, so its plan is not known; name another")
        text = json.dumps(
            {"version": VERSION, "arguments": arguments.plain(), "cells": [cell.plain() for cell in cells]}, indent=1
        )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            files.write_text(grid, text + "\n")
        except OSError as error:
            raise InvalidInput(f"{grid} cannot be written: {error.strerror}") from None
        return list(cells)

    def planned(self, arguments: Arguments | None = None) -> list[Cell]:
        """The cells of `grid.json`; refuses other arguments and names the differences."""
        grid = self.path / GRID
        try:
            values = parse(grid.read_bytes())
            old = Arguments.read(values["arguments"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(f"{grid} cannot be read: {error}; give the folder of a grid, or a new one") from None
        differing = [] if arguments is None else differences(old, arguments)
        if differing:
            raise InvalidInput(
                f"{self.path} holds results of other settings: {'; '.join(differing)}; give the same, or another --out"
            )
        return check_cells(values.get("cells"), str(grid))

    def records(self, *, repair: bool = True) -> list[Record]:
        """Every usable record; a warning counts the other lines, whose cells will run again.

        An incomplete last line is dropped; `repair` also removes it from the file.
        """
        path = self.path / RESULTS
        read = read_records(path)
        for note in read.notes:
            self.warn(f"{self.path}: {note}; these cells will run again")
        if read.torn and repair:
            try:
                with path.open("r+b") as file:
                    file.truncate(read.size - read.torn)
                    os.fsync(file.fileno())
            except OSError as error:
                raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None
        return read.records

    def append(self, record: Record) -> None:
        """Adds one line, which is on the disk before this returns."""
        path = self.path / RESULTS
        line = json.dumps(finite(record.plain()), ensure_ascii=False) + "\n"
        try:
            number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                size = os.fstat(number).st_size
                try:
                    left = line.encode()
                    while left:
                        left = left[os.write(number, left) :]
                    os.fsync(number)
                except OSError:
                    os.ftruncate(number, size)  # a partial line is not a record
                    raise
            finally:
                os.close(number)
        except OSError as error:
            raise InvalidInput(
                f"{path} could not be written: {error.strerror}; the cells that ended before are kept: make room, and "
                "give the same command again"
            ) from None


def latest(records: Iterable[Record]) -> dict[str, Record]:
    """The last record of each cell, by its key."""
    return {record.cell.key: record for record in records}


def left(cells: Iterable[Cell], records: Iterable[Record], *, retry: bool = False) -> list[Cell]:
    """The cells that have no record, and with `retry` also those that are not done."""
    ended = latest(records)

    def to_run(cell: Cell) -> bool:
        record = ended.get(cell.key)
        return record is None or record.cell != cell or (retry and record.state != "done")

    return [cell for cell in cells if to_run(cell)]


__all__ = ["CELLS", "GRID", "RESULTS", "Folder", "Read", "latest", "left", "read_records"]
