"""Runs cells, each in its own process, so that a crash costs only one cell."""

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from longspan.arena.runs.cell import Cell, Record, out_of_memory_at
from longspan.arena.runs.grid import spell, time_limit
from longspan.data.json_lines import parse
from longspan.errors import InvalidInput
from longspan.measure.machine import memory_kills

PULSE = 0.2  # seconds between polls of the processes
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
AFTER_KILL = 20.0  # seconds to wait for a killed process on a busy machine
COMMAND = (sys.executable, "-m", "longspan.arena.runs.process")  # followed by the paths of the cell and of its record
PARENT_DEATH = 1  # PR_SET_PDEATHSIG of Linux


@dataclass(frozen=True)
class CellStarted:
    cell: Cell


@dataclass(frozen=True)
class CellProgress:
    """The progress of a running cell."""

    cell: Cell
    step: int | None = None
    steps: int | None = None
    held_out: float | None = None


@dataclass(frozen=True)
class CellFinished:
    record: Record


@dataclass(frozen=True)
class RunNote:
    """A message for the user."""

    line: str


@dataclass(frozen=True)
class NoEvent:
    """Nothing new; lets the caller look at the clock and at signals."""


Event = CellStarted | CellProgress | CellFinished | RunNote | NoEvent


class Runner(ABC):
    """Runs cells; closing the generator that `run` returns stops everything it started."""

    @abstractmethod
    def run(self, cells: Sequence[Cell]) -> Generator[Event, None, None]:
        """Yields events: one `CellFinished` per cell, in any order, and `NoEvent` at least every second."""


@dataclass
class _Running:
    cell: Cell
    process: subprocess.Popen[bytes]
    folder: Path
    began: datetime
    clock: float
    kills: int | None  # the system's count of out-of-memory kills before the start
    unread: bytes = b""  # output without its end of line
    size: dict[str, int] = field(default_factory=dict)  # the length and batch of the cell
    listening: bool = True
    events: list[Event] = field(default_factory=list)


class LocalRunner(Runner):
    """Runs cells in processes on this machine, several at a time; speed cells run alone."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        limit: Callable[[Cell], float | None] = time_limit,
        kills: Callable[[], int | None] | None = None,
        again: bool = False,
    ) -> None:
        """`folder` gets a folder for each cell; `again` ignores records that an earlier process left there."""
        self.folder, self.workers, self.again = folder, workers, again
        self.environment = dict(environment or {})  # such as LONGSPAN_DATA
        self.command = tuple(command or COMMAND)
        self.limit, self.kills = limit, memory_kills if kills is None else kills

    def run(self, cells: Sequence[Cell]) -> Generator[Event, None, None]:
        waiting, running = deque(cells), list[_Running]()
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or running:
                    while waiting and self._fits(waiting[0], running):
                        cell = waiting.popleft()
                        yield CellStarted(cell)
                        if (record := self._left_record(cell)) is not None:
                            yield CellFinished(record)
                            continue
                        running.append(self._start(cell))
                        selector.register(_output(running[-1]), selectors.EVENT_READ, running[-1])
                    for key, _ in selector.select(PULSE):
                        if not _listen(key.data):
                            selector.unregister(key.fileobj)
                    for child in list(running):
                        record = self._poll(child)  # also reads the last output
                        yield from child.events
                        child.events.clear()
                        if record is not None:
                            with suppress(KeyError):  # it may have closed its output before it exited
                                selector.unregister(_output(child))
                            running.remove(child)
                            _output(child).close()
                            yield CellFinished(record)
                    yield NoEvent()
            finally:
                stop([child.process for child in running])
                for child in running:
                    _output(child).close()

    def _fits(self, cell: Cell, running: Sequence[_Running]) -> bool:
        if any(child.cell.kind == "speed" for child in running) or (running and cell.kind == "speed"):
            return False
        return len(running) < self.workers

    def _left_record(self, cell: Cell) -> Record | None:
        """The record of a process whose runner died before reading it."""
        return None if self.again else _record(self.folder / cell.key / "record.json", cell)

    def _start(self, cell: Cell) -> _Running:
        folder = self.folder / cell.key
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "record.json").unlink(missing_ok=True)
            (folder / "cell.json").write_text(json.dumps(cell.plain(), indent=1) + "\n", encoding="utf-8")
            with (folder / "stderr.txt").open("wb") as errors:
                threads = str(cell.threads)
                process = subprocess.Popen(
                    [*self.command, str(folder / "cell.json"), str(folder / "record.json")],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C reaches only us, and killing the group ends its children too
                    preexec_fn=_end_with_parent if sys.platform == "linux" else None,
                    env={
                        **os.environ,
                        "OMP_NUM_THREADS": threads,
                        "MKL_NUM_THREADS": threads,
                        "PYTHONUNBUFFERED": "1",
                        **self.environment,
                    },
                )
        except OSError as error:
            raise InvalidInput(f"cannot start a process for {cell.key} in {folder}: {error}") from None
        running = _Running(cell, process, folder, datetime.now(UTC), time.monotonic(), self.kills())
        os.set_blocking(_output(running).fileno(), False)
        return running

    def _poll(self, child: _Running) -> Record | None:
        """The record of a process that has exited or exceeded its time limit."""
        limit = self.limit(child.cell)
        if child.process.poll() is None:
            if limit is None or time.monotonic() - child.clock < limit:
                return None
            stop([child.process])
            return _failed(child, "stopped", f"stopped after {spell(limit)}, the time limit for its budget")
        _listen(child)
        record = _record(child.folder / "record.json", child.cell)
        if record is not None:
            return record
        last = _last_line(child.folder / "stderr.txt")
        code = child.process.returncode
        if code == -signal.SIGKILL:
            before, after = child.kills, self.kills()
            if before is not None and after is not None and after > before:
                how = "ended by SIGKILL while the system killed a process because memory ran out"
                return _failed(child, "memory", f"{out_of_memory_at(child.cell, child.size)}: {how}")
            counted = "the system keeps no count" if after is None else "the system counts no out-of-memory kill"
            sizes = f", length {child.size['length']} and batch {child.size['batch']}" if child.size else ""
            return _failed(child, "failed", f"ended by SIGKILL: out of memory, or killed by a user ({counted}){sizes}")
        end = f"ended by {_signal(-code)}" if code < 0 else f"ended with code {code} and no record"
        return _failed(child, "failed", f"{end}: {last}" if last else f"{end}, with nothing on standard error")


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends the processes and their children: SIGTERM, a short wait, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        alive = [process for process in processes if process.poll() is None]
        for process in alive:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        end = time.monotonic() + (GRACE if number == signal.SIGTERM else AFTER_KILL)
        for process in alive:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))


_library = (
    ctypes.CDLL(None) if sys.platform == "linux" else None
)  # loaded here: little is allowed between fork and exec


def _end_with_parent() -> None:
    """In the new process: end it when its runner ends, even by SIGKILL."""
    if _library is not None:
        _library.prctl(PARENT_DEATH, signal.SIGKILL)


def _output(child: _Running) -> Any:
    assert child.process.stdout is not None
    return child.process.stdout


def _listen(child: _Running) -> bool:
    """Reads the output that is available; False at its end."""
    while child.listening:
        try:
            chunk = os.read(_output(child).fileno(), 65536)
        except BlockingIOError:
            return True
        child.listening = bool(chunk)
        *lines, child.unread = (child.unread + chunk).split(b"\n")
        for line in lines:
            try:
                values = json.loads(line)
                if isinstance(values, dict) and {"length", "batch"} <= values.keys():
                    child.size = {"length": int(values["length"]), "batch": int(values["batch"])}
                    continue
                progress = CellProgress(child.cell, values["step"], values.get("steps"), values.get("held_out"))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # printed by some library
            child.events.append(progress)
    return False


def _record(path: Path, cell: Cell) -> Record | None:
    """The complete record that a process wrote of this cell."""
    try:
        record = Record.read(parse(path.read_bytes()))
    except (OSError, InvalidInput):
        return None
    return record if record.cell == cell else None


def _failed(child: _Running, state: str, error: str) -> Record:
    return Record(cell=child.cell, state=state, error=error, began=child.began.isoformat(timespec="seconds"))


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


__all__ = [
    "CellFinished",
    "CellProgress",
    "CellStarted",
    "Event",
    "LocalRunner",
    "NoEvent",
    "RunNote",
    "Runner",
    "stop",
]
