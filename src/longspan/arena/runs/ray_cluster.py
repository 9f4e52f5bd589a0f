"""Runs a grid on a Ray cluster: one Ray task per cell, which runs the cell in its own process."""

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

PULSE = 0.5  # seconds between polls of the tasks
REACH = 5.0  # seconds to wait for an address to answer
TRIES = 2  # runs of a cell whose worker died, since the cell is rarely the cause


class RayRunner(Runner):
    """Runs cells as tasks of a Ray cluster, or of a local one that is started for this run."""

    def __init__(
        self,
        *,
        address: str | None = None,
        processors: int | None = None,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        limit: Callable[[Cell], float | None] = time_limit,
    ) -> None:
        """`processors` is the number of CPUs of the local cluster that is started if there is no address."""
        self.ray = _ray()
        self.address = address or os.environ.get("RAY_ADDRESS") or None
        self.processors, self.limit = processors, limit
        self.environment, self.command = dict(environment or {}), None if command is None else tuple(command)

    def run(self, cells: Sequence[Cell]) -> Generator[Event, None, None]:
        ray = self.ray
        started_here = not ray.is_initialized()
        if started_here:
            self._connect()
        tasks: dict[Any, Cell] = {}
        tries: dict[str, int] = {}
        begun: set[str] = set()
        try:
            largest = int(max((node["Resources"].get("CPU", 1) for node in ray.nodes() if node["Alive"]), default=1))
            _check_room(cells, largest)
            board = ray.remote(num_cpus=0)(ProgressBoard).remote()
            task = ray.remote(max_retries=0, max_calls=1)(
                _run_cell
            )  # retries are made below, so that the user sees them

            def send(cell: Cell) -> None:
                tries[cell.key] = tries.get(cell.key, 0) + 1
                # A speed cell must run alone on its machine, so it requests all of its CPUs.
                sized = task.options(num_cpus=largest if cell.kind == "speed" else cell.threads, name=cell.key)
                arguments = (self.environment, self.command, self.limit(cell), board)
                tasks[sized.remote(cell.plain(), *arguments)] = cell

            for cell in cells:
                send(cell)
            while tasks:
                ended, _ = ray.wait(list(tasks), timeout=PULSE)
                with suppress(
                    ray.exceptions.RayError
                ):  # without the board there is no progress, but the result still comes
                    for key, values in ray.get(board.take.remote()).items():
                        running = next((cell for cell in tasks.values() if cell.key == key), None)
                        if running is not None:
                            if key not in begun:
                                begun.add(key)
                                yield CellStarted(running)
                            yield CellProgress(running, **values)
                for reference in ended:
                    cell = tasks.pop(reference)
                    record, died = self._result(reference, cell)
                    if died and tries[cell.key] < TRIES:
                        yield RunNote(f"{cell.key}: {record.error}; it runs once more")
                        send(cell)
                    else:
                        yield CellFinished(record)
                yield NoEvent()
        finally:
            for reference in tasks:
                with suppress(Exception):  # the task or the cluster may have ended
                    ray.cancel(reference, force=True)
            if started_here:
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
        """Starts a local Ray that listens on 127.0.0.1 only: anyone who can reach its ports can run code here."""
        from ray._private import ray_constants

        # By default Ray refuses 127.0.0.1 as the address of a node on Linux; this switch allows it.
        before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
        os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # for its workers
        try:
            self.ray.init(address="local", num_cpus=self.processors, include_dashboard=False, **quiet)
            addresses = {node["NodeManagerAddress"] for node in self.ray.nodes()}
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = before
            del os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR]
        if not all(ipaddress.ip_address(address).is_loopback for address in addresses):
            self.ray.shutdown()
            raise RuntimeError(
                f"it listens on {', '.join(addresses)}, not only on 127.0.0.1; start one with `ray start`, and give "
                "--address"
            )

    def _result(self, reference: Any, cell: Cell) -> tuple[Record, bool]:
        """The record of a finished task, and whether its worker died."""
        errors = self.ray.exceptions
        try:
            return Record.read(self.ray.get(reference)), False
        except errors.OutOfMemoryError:
            return Record(cell=cell, state="memory", error="Ray killed its worker because memory ran out"), True
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.LocalRayletDiedError) as error:
            what = "its worker died" if isinstance(error, errors.WorkerCrashedError) else "its machine was lost"
            return Record(cell=cell, state="failed", error=f"{what}: killed, or out of memory; Ray does not say"), True
        except errors.RayError as error:
            last = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
            return Record(cell=cell, state="failed", error=last.strip()[:500]), False


class ProgressBoard:
    """Collects the progress of cells; an actor, since Ray tasks cannot send messages to the driver."""

    def __init__(self) -> None:
        self.news: dict[str, dict[str, Any]] = {}

    def post(self, key: str, values: dict[str, Any]) -> None:
        self.news[key] = values

    def take(self) -> dict[str, dict[str, Any]]:
        """The progress that was posted since the last call."""
        news, self.news = self.news, {}
        return news


def _run_cell(
    values: dict[str, Any],
    environment: Mapping[str, str],
    command: Sequence[str] | None,
    limit: float | None,
    board: Any,
) -> dict[str, Any]:
    """Runs a cell on the machine of the Ray worker."""
    cell = Cell.read(values)
    with tempfile.TemporaryDirectory(prefix="longspan-arena-") as folder:
        runner = LocalRunner(
            Path(folder), workers=1, environment=environment, command=command, limit=lambda cell: limit
        )
        for event in runner.run([cell]):
            if isinstance(event, CellStarted):
                board.post.remote(cell.key, {})
            if isinstance(event, CellProgress):
                news = {"step": event.step, "steps": event.steps, "held_out": event.held_out}
                board.post.remote(cell.key, news)
            if isinstance(event, CellFinished):
                return event.record.plain()
    raise AssertionError("a runner finishes every cell")


def _check_reachable(address: str) -> None:
    """Raises quickly if nothing answers; Ray itself would try for minutes."""
    match = re.fullmatch(r"(?:ray://)?(?P<host>[^/]+):(?P<port>\d{1,5})", address)
    if match is None:
        if address in ("auto", "local"):
            return
        raise ValueError("an address is HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), REACH).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(getattr(error, "strerror", None) or str(error)) from None


def _check_room(cells: Sequence[Cell], largest: int) -> None:
    widest = max((cell.threads for cell in cells), default=1)
    if widest > largest:
        raise InvalidInput(
            f"cells of {widest} threads fit on no machine of the cluster, "
            f"the largest has {largest}: --threads {largest}"
        )


def _ray() -> Any:
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")  # otherwise it warns every second while it cannot connect
    try:
        import ray
    except ImportError:
        raise Unsupported("--runner ray needs Ray, which is not installed: pip install 'longspan[ray]'") from None
    import ray.exceptions

    return ray


__all__ = ["RayRunner"]
