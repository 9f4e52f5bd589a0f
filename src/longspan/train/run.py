"""A run is a folder: `config.toml` (resolved), `metrics.jsonl`, `checkpoints/`. Everything else is computed from it."""

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longspan.errors import InvalidInput
from longspan.parsing import parse_json, read_text
from longspan.train.board import Board

CONFIG, METRICS, CHECKPOINTS, LOCK = "config.toml", "metrics.jsonl", "checkpoints", "lock"
RESULT = "model"  # the trained model, ready to be loaded


class Run:
    """The folder of a run and its files."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._held = False
        self.board: Board | None = None  # gets every row as well

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of a step stands."""
        return self.checkpoints / f"{step:08}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """While it is written to, nobody else may; the lock goes with the process, however that ends.

        Whoever holds it may ask again.
        """
        if self._held:
            yield
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / LOCK).open("a+")
        except OSError as error:
            raise InvalidInput(f"{self.folder} cannot be written to: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                raise InvalidInput(
                    f"{self.folder} is in use by process {owner}; wait for it, stop it, or name another folder"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self._held = True
            try:
                yield
            finally:
                self._held = False

    def refuse_used(self) -> None:
        """A run that was begun is not begun again."""
        if any(path.name.isdigit() for path in self.checkpoints.glob("*")) or (self.folder / RESULT).exists():
            raise InvalidInput(f"{self.folder} holds a run already; resume it, or name another folder")

    def log(self, row: Mapping[str, Any]) -> None:
        """Adds a row to the metrics."""
        path = self.folder / METRICS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_finite(row)) + "\n")
        except OSError as error:
            raise InvalidInput(f"{path} could not be written: {error.strerror}; the checkpoints are whole") from None
        if self.board is not None:
            self.board.add(row)

    def rows(self) -> list[dict[str, Any]]:
        """The metrics; a last line that was cut short is left out."""
        path = self.folder / METRICS
        if not path.is_file():
            return []
        found = []
        lines = read_text(path).splitlines()
        for number, line in enumerate(lines, 1):
            try:
                row = parse_json(line, f"{path}, line {number}")
            except InvalidInput:
                if number == len(lines):
                    break
                raise
            if not isinstance(row, dict) or not isinstance(row.get("step", 0), int):
                raise InvalidInput(f"{path}, line {number} is no row of metrics; remove it: {line[:80]!r}")
            found.append(row)
        return found

    def forget_after(self, step: int) -> None:
        """Drops the metrics of steps that will be made again."""
        kept = [row for row in self.rows() if row.get("step", 0) <= step]
        path = self.folder / METRICS
        if path.is_file():
            part = path.with_suffix(".part")
            part.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            part.replace(path)


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: null stands for them."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


__all__ = ["CHECKPOINTS", "CONFIG", "METRICS", "RESULT", "Run"]
