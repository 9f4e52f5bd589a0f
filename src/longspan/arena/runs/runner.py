"""Runs cells, each in a process of its own: what goes wrong in one costs that one."""

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

PULSE = 0.2  # seconds between looks at the processes
GRACE = 5.0  # seconds between asking a process to end and ending it
AFTER_KILL = 20.0  # seconds in which a killed process is gone, however busy the machine is
COMMAND = (sys.executable, "-m", "longspan.arena.runs.process")  # and the files of a cell and of its record
PARENT_DEATH = 1  # PR_SET_PDEATHSIG of Linux


@dataclass(frozen=True)
class Began:
    cell: Cell


@dataclass(frozen=True)
class Told:
    """How far a cell is."""

    cell: Cell
    step: int | None = None
    steps: int | None = None
    held_out: float | None = None


@dataclass(frozen=True)
class Ended:
    record: Record


@dataclass(frozen=True)
class Noted:
    """Something worth a line that is no result."""

    line: str


@dataclass(frozen=True)
class Idle:
    """Nothing new; so that whoever listens can look at the clock and at signals."""


Event = Began | Told | Ended | Noted | Idle


class Runner(ABC):
    """Runs cells; closing what `run` returns stops everything it started, and then nothing more is told."""

    @abstractmethod
    def run(self, cells: Sequence[Cell]) -> Generator[Event, None, None]:
        """What happens, as it happens: one `Ended` for each cell, in any order, and `Idle` at least once a second."""


@dataclass
class _Running:
    cell: Cell
    process: subprocess.Popen[bytes]
    folder: Path
    began: datetime
    clock: float
    kills: int | None  # of the system for want of memory, before it began
    told: bytes = b""
    size: dict[str, int] = field(default_factory=dict)  # the length and the batch that it works on
    listening: bool = True
    news: list[Event] = field(default_factory=list)


class LocalRunner(Runner):
    """Processes of this machine, some side by side; speeds are measured while nothing else runs."""

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
        """`folder` gets a folder for each cell; `again` forgets what an earlier process left there."""
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
                        yield Began(cell)
                        if (kept := self._kept(cell)) is not None:
                            yield Ended(kept)
                            continue
                        running.append(self._start(cell))
                        selector.register(_output(running[-1]), selectors.EVENT_READ, running[-1])
                    for key, _ in selector.select(PULSE):
                        if not _listen(key.data):
                            selector.unregister(key.fileobj)
                    for one in list(running):
                        record = self._ended(one)  # which listens to the last words too
                        yield from one.news
                        one.news.clear()
                        if record is not None:
                            with suppress(KeyError):  # it may have closed its output before it ended
                                selector.unregister(_output(one))
                            running.remove(one)
                            _output(one).close()
                            yield Ended(record)
                    yield Idle()
            finally:
                stop([one.process for one in running])
                for one in running:
                    _output(one).close()

    def _fits(self, cell: Cell, running: Sequence[_Running]) -> bool:
        if any(one.cell.kind == "speed" for one in running) or (running and cell.kind == "speed"):
            return False
        return len(running) < self.workers

    def _kept(self, cell: Cell) -> Record | None:
        """What a process wrote whose runner died before it took it."""
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
                    start_new_session=True,  # Ctrl-C is for us alone, and its own processes end with it
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
            raise InvalidInput(f"a process for {cell.key} cannot be started in {folder}: {error}") from None
        running = _Running(cell, process, folder, datetime.now(UTC), time.monotonic(), self.kills())
        os.set_blocking(_output(running).fileno(), False)
        return running

    def _ended(self, one: _Running) -> Record | None:
        limit = self.limit(one.cell)
        if one.process.poll() is None:
            if limit is None or time.monotonic() - one.clock < limit:
                return None
            stop([one.process])
            return _failed(one, "stopped", f"stopped after {spell(limit)}, the most that a cell of its budget may take")
        _listen(one)
        found = _record(one.folder / "record.json", one.cell)
        if found is not None:
            return found
        last = _last_line(one.folder / "stderr.txt")
        code = one.process.returncode
        if code == -signal.SIGKILL:
            before, after = one.kills, self.kills()
            if before is not None and after is not None and after > before:
                how = "ended by SIGKILL while the system killed a process for want of memory"
                return _failed(one, "memory", f"{out_of_memory_at(one.cell, one.size)}: {how}")
            said = "the system does not say" if after is None else "the system counts no kill for want of memory"
            sizes = f", length {one.size['length']} and batch {one.size['batch']}" if one.size else ""
            return _failed(one, "failed", f"ended by SIGKILL: out of memory, or killed by someone ({said}){sizes}")
        end = f"ended by {_signal(-code)}" if code < 0 else f"ended with code {code} and no record"
        return _failed(one, "failed", f"{end}: {last}" if last else f"{end}, and nothing on standard error")


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks them to end, waits a little, and ends them; with all that they started."""
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
)  # loaded here: between fork and exec little may be done


def _end_with_parent() -> None:
    """In the new process: it ends when its runner does, even by SIGKILL, instead of training for nobody."""
    if _library is not None:
        _library.prctl(PARENT_DEATH, signal.SIGKILL)


def _output(one: _Running) -> Any:
    assert one.process.stdout is not None
    return one.process.stdout


def _listen(one: _Running) -> bool:
    """Reads what it said, as far as there is; False at the end of it."""
    while one.listening:
        try:
            part = os.read(_output(one).fileno(), 65536)
        except BlockingIOError:
            return True
        one.listening = bool(part)
        *lines, one.told = (one.told + part).split(b"\n")
        for line in lines:
            try:
                values = json.loads(line)
                if isinstance(values, dict) and {"length", "batch"} <= values.keys():
                    one.size = {"length": int(values["length"]), "batch": int(values["batch"])}
                    continue
                told = Told(one.cell, values["step"], values.get("steps"), values.get("held_out"))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                continue  # some library printed something
            one.news.append(told)
    return False


def _record(path: Path, cell: Cell) -> Record | None:
    """What a process wrote of this very cell, if it is whole."""
    try:
        found = Record.read(parse(path.read_bytes()))
    except (OSError, InvalidInput):
        return None
    return found if found.cell == cell else None


def _failed(one: _Running, state: str, error: str) -> Record:
    return Record(cell=one.cell, state=state, error=error, began=one.began.isoformat(timespec="seconds"))


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


__all__ = ["Began", "Ended", "Event", "Idle", "LocalRunner", "Noted", "Runner", "Told", "stop"]
