"""Run one cell in its own process: `python -m longspan.arena.runs.process CELL.json OUT.json`.

Standard output has one JSON object per line with the progress: {"step", "steps", "held_out"}. OUT.json gets the record,
also if the cell fails; only a killed process leaves none.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from longspan import files
from longspan.arena.runs.cell import KINDS, Cell, Record, finite, out_of_memory_at
from longspan.arena.tasks.registry import DataFolders
from longspan.errors import InvalidInput, LongspanError
from longspan.files import cache
from longspan.measure.footprint import out_of_memory
from longspan.parsing import read_json, refusing


def attempt(cell: Cell, folders: DataFolders, say: Callable[[Mapping[str, float]], None] = lambda row: None) -> Record:
    """Runs a cell and returns its record, also if it fails."""
    began = datetime.now(UTC).isoformat(timespec="seconds")
    size: Mapping[str, float] = {}

    def report(row: Mapping[str, float]) -> None:
        nonlocal size
        size = row if "batch" in row else size
        say(row)

    try:
        return _run(cell, folders, report)
    except Exception as error:
        if out_of_memory(error):
            line = f"{out_of_memory_at(cell, size)}: {_line(error)}"
            return Record(cell=cell, state="memory", error=line, began=began)
        if not isinstance(error, LongspanError):
            traceback.print_exc()  # an unexpected error: one line is not enough to find its cause
        return Record(cell=cell, state="failed", error=_line(error), began=began)


def _run(cell: Cell, folders: DataFolders, say: Callable[[Mapping[str, float]], None]) -> Record:
    if cell.kind not in KINDS:
        raise InvalidInput(f"a cell is of the kind {' or '.join(KINDS)}, not {cell.kind!r}")
    if cell.kind == "speed":
        from longspan.arena.runs import speed

        return speed.run(cell, _print_error, say)
    from longspan.arena.runs import training

    return training.run(cell, folders, say)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, LongspanError) else f"{type(error).__name__}: {text}"


def read(path: Path) -> Cell:
    """The cell in a file."""
    if not path.is_file():
        raise InvalidInput(f"{path} cannot be read: there is no such file")
    values = read_json(path)
    if not isinstance(values, dict) or not {"task", "model"} <= values.keys():
        raise InvalidInput(f"{path} is no cell: expected an object with task and model")
    with refusing(path, "is no cell"):
        return Cell.read(values)


def write(record: Record, path: Path) -> None:
    """Writes a record atomically; infinity and NaN become null, which JSON does not have."""
    files.write_text(path, json.dumps(finite(record.plain()), ensure_ascii=False) + "\n")


def data_folders() -> DataFolders:
    """The data folders that the environment names: LONGSPAN_DATA and LONGSPAN_CACHE."""
    data = os.environ.get("LONGSPAN_DATA")
    return DataFolders(Path(data) if data else None, cache() / "arena")


def _report(row: Mapping[str, float]) -> None:
    sys.stdout.write(json.dumps(finite(row)) + "\n")
    sys.stdout.flush()


def _print_error(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        _print_error("usage: python -m longspan.arena.runs.process CELL.json OUT.json")
        return 2
    cell_path, out_path = map(Path, arguments)
    try:
        cell = read(cell_path)
    except LongspanError as error:
        _print_error(str(error))
        return 2
    record = attempt(cell, data_folders(), _report)
    write(record, out_path)
    return 0 if record.state == "done" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
