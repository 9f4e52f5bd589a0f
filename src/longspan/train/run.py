"""The folder of a run: `config.toml` (resolved), `metrics.jsonl`, `checkpoints/`, and a lock while it is in use."""

import fcntl
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import IO, Any

from longspan import files
from longspan.data.json_lines import parse
from longspan.errors import InvalidInput
from longspan.hub.locate import CHECKPOINTS, RESULT
from longspan.hub.locate import RECIPE as CONFIG
from longspan.train.tensorboard import TensorBoard

METRICS, LOCK = "metrics.jsonl", "lock"
SPLIT = "split.json"  # numbers of the held-out rows, if the task drew them
SEEDS = "seeds.json"  # marks the folder of a set of runs, one for each seed
DATA = "data"  # token files, which can be made again


class Run:
    """The folder of a run and its files."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._held = False
        self.board: TensorBoard | None = None  # also receives every row

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.checkpoints / f"{step:08}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder against other processes. The lock ends with the process, however that ends.

        The owner may lock it again.
        """
        if self._held:
            yield
            return
        before, created = set(_names(self.folder)), _missing(self.folder)
        with self._lock() as file:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self._held = True
            try:
                yield
            except BaseException:
                self._clear(before, created)
                raise
            finally:
                self._held = False

    def _lock(self) -> IO[str]:
        """The locked file."""
        path = self.folder / LOCK
        while True:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                file = path.open("a+")
            except OSError as error:
                raise InvalidInput(f"{self.folder} cannot be written to: {error.strerror}") from None
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with file:
                    file.seek(0)
                    owner = file.read().strip() or "unknown"
                raise InvalidInput(
                    f"{self.folder} is in use by process {owner}; wait for it, stop it, or name another folder"
                ) from None
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
            file.close()  # another run removed it meanwhile (`_clear`)

    def _clear(self, before: set[str], created: list[Path]) -> None:
        """Remove what a run that never began has left; keep the files that existed `before`."""
        if (self.folder / CONFIG).exists():
            return
        for name in {LOCK, DATA, SPLIT, f"{CONFIG}.part"} - before:
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for folder in created:
            with suppress(OSError):  # keep a folder with other files
                folder.rmdir()

    def refuse_used(self) -> None:
        """Refuse to begin a new run in a folder that has one."""
        if any(path.name.isdigit() for path in self.checkpoints.glob("*")) or (self.folder / RESULT).exists():
            raise InvalidInput(f"{self.folder} has a run already; resume it, or name another folder")

    def log(self, row: Mapping[str, Any]) -> None:
        """Append a row to the metrics."""
        path = self.folder / METRICS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_finite(row)) + "\n")
        except OSError as error:
            raise InvalidInput(f"{path} could not be written: {error.strerror}; the checkpoints are complete") from None
        if self.board is not None:
            self.board.add(row)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the metrics, without damaged lines."""
        return self._read()[0]

    def unread(self) -> int:
        """The number of damaged lines in the metrics, not counting a last line that was cut short."""
        return self._read()[1]

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        path = self.folder / METRICS
        if not path.is_file():
            return [], 0
        *lines, last = path.read_bytes().split(b"\n")
        read = [_row(line) for line in lines]
        if (cut := _row(last)) is not None:
            read.append(cut)
        return [row for row in read if row is not None], sum(row is None for row in read)

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps after `step`, which will be repeated, and damaged lines."""
        path = self.folder / METRICS
        if not path.is_file():
            return
        kept = [row for row in self.rows() if row.get("step", 0) <= step]
        files.write_text(path, "".join(json.dumps(row) + "\n" for row in kept))


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse(line)
    except InvalidInput:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step", 0), int) else None


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _missing(folder: Path) -> list[Path]:
    """The folder and its parents that do not exist, innermost first."""
    return list(takewhile(lambda path: not path.exists(), (folder, *folder.parents)))


def _finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


__all__ = ["CHECKPOINTS", "CONFIG", "METRICS", "RESULT", "SEEDS", "SPLIT", "Run"]
