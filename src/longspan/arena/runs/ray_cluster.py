"""The same grid on a Ray cluster: a task for each cell, which runs it in a process of its own on its machine."""

import ipaddress
import logging
import os
import re
import socket
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from longspan.arena.runs.cell import Cell, Record
from longspan.arena.runs.grid import time_limit
from longspan.arena.runs.runner import (
    CellFinished,
    CellProgress,
    CellStarted,
    Event,
    LocalRunner,
    NoEvent,
    Runner,
    RunNote,
)
from longspan.errors import InvalidInput, Unsupported

PULSE = 0.5  # seconds between looks at the tasks
REACH = 5.0  # seconds in which an address answers
TRIES = 2  # of a cell whose worker died, which is mostly not its fault


class RayRunner(Runner):
    """Tasks of a Ray cluster, or of one that is started here for the time of the run."""

    def __init__(
        self,
        *,
        address: str | None = None,
        processors: int | None = None,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        limit: Callable[[Cell], float | None] = time_limit,
    ) -> None:
        """`processors` are those of the cluster that is started, where there is no address."""
        self.ray = _ray()
        self.address = address or os.environ.get("RAY_ADDRESS") or None
        self.processors, self.limit = processors, limit
        self.environment, self.command = dict(environment or {}), None if command is None else tuple(command)

    def run(self, cells: Sequence[Cell]) -> Generator[Event, None, None]:
        ray = self.ray
        ours = not ray.is_initialized()
        if ours:
            self._connect()
        tasks: dict[Any, Cell] = {}
        tries: dict[str, int] = {}
        begun: set[str] = set()
        try:
            whole = int(max((node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"]), default=1))
            _check_room(cells, whole)
            board = ray.remote(num_cpus=0)(ProgressBoard).remote()
            task = ray.remote(max_retries=0, max_calls=1)(_run_cell)  # tried again here, where it can be told

            def send(cell: Cell) -> None:
                tries[cell.key] = tries.get(cell.key, 0) + 1
                # Speeds are measured while nothing else runs: such a task asks for all of a machine.
                wanted = task.options(num_cpus=whole if cell.kind == "speed" else cell.threads, name=cell.key)
                rest = (self.environment, self.command, self.limit(cell), board)
                tasks[wanted.remote(cell.plain(), *rest)] = cell

            for cell in cells:
                send(cell)
            while tasks:
                ended, _ = ray.wait(list(tasks), timeout=PULSE)
                with suppress(ray.exceptions.RayError):  # without its board a cell still has its result
                    for key, values in ray.get(board.taken.remote()).items():
                        teller = next((one for one in tasks.values() if one.key == key), None)
                        if teller is not None:
                            if key not in begun:
                                begun.add(key)
                                yield CellStarted(teller)
                            yield CellProgress(teller, **values)
                for reference in ended:
                    cell = tasks.pop(reference)
                    record, died = self._result(reference, cell)
                    if died and tries[cell.key] < TRIES:
                        yield RunNote(f"{cell.key}: {record.error}; it is tried once more")
                        send(cell)
                    else:
                        yield CellFinished(record)
                yield NoEvent()
        finally:
            for reference in tasks:
                with suppress(Exception):  # it may have ended, or its cluster
                    ray.cancel(reference, force=True)
            if ours:
                ray.shutdown()

    def _connect(self) -> None:
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if self.address is None:
                self._start(quiet)
            else:
                _check_reachable(self.address)
                self.ray.init(address=self.address, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            where = "a local Ray cannot be started" if self.address is None else f"no Ray cluster at {self.address}"
            raise InvalidInput(f"{where}: {' '.join(str(error).split())}") from None

    def _start(self, quiet: Mapping[str, Any]) -> None:
        """Starts a Ray of our own that listens on 127.0.0.1 alone: whoever reaches its ports can run code here."""
        from ray._private import ray_constants

        # Ray does not take 127.0.0.1 as the address of a node on Linux; this is the switch by which it does.
        before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
        os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # for its workers
        try:
            self.ray.init(address="local", num_cpus=self.processors, include_dashboard=False, **quiet)
            addresses = {node["NodeManagerAddress"] for node in self.ray.nodes()}
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = before
            del os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR]
        if not all(ipaddress.ip_address(each).is_loopback for each in addresses):
            self.ray.shutdown()
            raise RuntimeError(
                f"it listens on {', '.join(addresses)}, not on 127.0.0.1 alone; start one by `ray start`, and give "
                "--address"
            )

    def _result(self, reference: Any, cell: Cell) -> tuple[Record, bool]:
        """What came of it, and whether its worker died."""
        errors = self.ray.exceptions
        try:
            return Record.read(self.ray.get(reference)), False
        except errors.OutOfMemoryError:
            return Record(cell=cell, state="memory", error="Ray ended its worker for want of memory"), True
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError) as error:
            what = "its machine was lost" if not isinstance(error, errors.WorkerCrashedError) else "its worker died"
            return Record(cell=cell, state="failed", error=f"{what}: killed, or out of memory; Ray does not say"), True
        except errors.RayError as error:
            last = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            return Record(cell=cell, state="failed", error=last.strip()[:500]), False


class ProgressBoard:
    """Where cells say how far they are; an actor, since tasks cannot talk to whoever sent them."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Any]] = {}

    def tell(self, key: str, values: dict[str, Any]) -> None:
        self.held[key] = values

    def taken(self) -> dict[str, dict[str, Any]]:
        """What is new since this was asked."""
        found, self.held = self.held, {}
        return found


def _run_cell(
    values: dict[str, Any],
    environment: Mapping[str, str],
    command: Sequence[str] | None,
    limit: float | None,
    board: Any,
) -> dict[str, Any]:
    """On the machine of the worker."""
    cell = Cell.read(values)
    with tempfile.TemporaryDirectory(prefix="longspan-arena-") as folder:
        runner = LocalRunner(
            Path(folder), workers=1, environment=environment, command=command, limit=lambda cell: limit
        )
        for event in runner.run([cell]):
            if isinstance(event, CellStarted):
                board.tell.remote(cell.key, {})
            if isinstance(event, CellProgress):
                news = {"step": event.step, "steps": event.steps, "held_out": event.held_out}
                board.tell.remote(cell.key, news)
            if isinstance(event, CellFinished):
                return event.record.plain()
    raise AssertionError("a runner ends each cell")


def _check_reachable(address: str) -> None:
    """Ray itself tries for minutes, and warns meanwhile."""
    found = re.fullmatch(r"(?:ray://)?(?P<host>[^/]+):(?P<port>\d{1,5})", address)
    if found is None:
        if address in ("auto", "local"):
            return
        raise ValueError("an address is HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), REACH).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(getattr(error, "strerror", None) or str(error)) from None


def _check_room(cells: Sequence[Cell], whole: int) -> None:
    widest = max((cell.threads for cell in cells), default=1)
    if widest > whole:
        raise InvalidInput(
            f"cells of {widest} threads fit on no machine of the cluster, the largest has {whole}: --threads {whole}"
        )


def _ray() -> Any:
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")  # it would warn each second that it cannot connect
    try:
        import ray
    except ImportError:
        raise Unsupported("--runner ray needs Ray, which is not installed: pip install 'longspan[ray]'") from None
    import ray.exceptions

    return ray


__all__ = ["RayRunner"]
