"""One cell in a process of its own: `python -m longspan.arena.runs.process CELL.json OUT.json`.

Progress is one JSON object a line on the standard output: {"step", "steps", "held_out"}. Whatever happens to the cell,
OUT.json says it; only a process that is killed leaves none.
"""

import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longspan import files
from longspan.arena.runs.cell import KINDS, Cell, Record, out_of_memory_at
from longspan.arena.tasks.registry import DataFolders
from longspan.errors import InvalidInput, LongspanError
from longspan.files import cache
from longspan.measure.footprint import out_of_memory
from longspan.parsing import read_json, refusing


def attempt(cell: Cell, place: DataFolders, say: Callable[[Mapping[str, float]], None] = lambda row: None) -> Record:
    """The record of a cell, whatever becomes of it."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    size: Mapping[str, float] = {}

    def heard(row: Mapping[str, float]) -> None:
        nonlocal size
        size = row if "batch" in row else size
        say(row)

    try:
        return _run(cell, place, heard)
    except Exception as error:
        if out_of_memory(error):
            line = f"{out_of_memory_at(cell, size)}: {_line(error)}"
            return Record(cell=cell, state="memory", error=line, began=began)
        if not isinstance(error, LongspanError):
            traceback.print_exc()  # to the standard error: a fault of ours, of which one line is too little
        return Record(cell=cell, state="failed", error=_line(error), began=began)


def _run(cell: Cell, place: DataFolders, say: Callable[[Mapping[str, float]], None]) -> Record:
    if cell.kind not in KINDS:
        raise InvalidInput(f"a cell is of the kind {' or '.join(KINDS)}, not {cell.kind!r}")
    if cell.kind == "speed":
        from longspan.arena.runs import speed

        return speed.run(cell, _complain, say)
    from longspan.arena.runs import training

    return training.run(cell, place, say)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no more is known"
    return text if isinstance(error, LongspanError) else f"{type(error).__name__}: {text}"


def read(path: Path) -> Cell:
    """The cell that a file holds."""
    if not path.is_file():
        raise InvalidInput(f"{path} cannot be read: there is no such file")
    values = read_json(path)
    if not isinstance(values, dict) or not {"task", "model"} <= values.keys():
        raise InvalidInput(f"{path} is no cell: an object with task and model, and what else a cell has")
    with refusing(path, "is no cell"):
        return Cell.read(values)


def write(record: Record, path: Path) -> None:
    """The whole record or nothing; numbers that are none become null, as JSON has no others."""
    files.write_text(path, json.dumps(_finite(record.plain()), ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def place() -> DataFolders:
    """Where data is, by the environment: LONGSPAN_DATA and LONGSPAN_CACHE."""
    named = os.environ.get("LONGSPAN_DATA")
    return DataFolders(Path(named) if named else None, cache() / "arena")


def _tell(row: Mapping[str, float]) -> None:
    sys.stdout.write(json.dumps(_finite(row)) + "\n")
    sys.stdout.flush()


def _complain(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        _complain("usage: python -m longspan.arena.runs.process CELL.json OUT.json")
        return 2
    cell_path, out_path = map(Path, arguments)
    try:
        cell = read(cell_path)
    except LongspanError as error:
        _complain(str(error))
        return 2
    record = attempt(cell, place(), _tell)
    write(record, out_path)
    return 0 if record.state == "done" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
