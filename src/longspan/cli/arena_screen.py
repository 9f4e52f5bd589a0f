"""Progress of `longspan arena`: a live table on a terminal, otherwise lines now and then."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from longspan.cli.terminal import Console

if TYPE_CHECKING:
    from longspan.arena.runs.cell import Cell, Record
    from longspan.arena.runs.runner import CellProgress, Event

QUIET = 30.0  # seconds between lines without a terminal


class Screen:
    """Shows the events of a running grid."""

    def __init__(
        self,
        console: Console,
        cells: "Sequence[Cell]",
        *,
        workers: int,
        ended: "Iterable[Record]" = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cells` are to run now; `ended` are the records of earlier runs."""
        self.console, self.workers, self.clock = console, workers, clock
        self.waiting = {cell.key: cell for cell in cells}
        self.running: dict[str, tuple[Cell, float, CellProgress | None]] = {}
        self.failed: list[Record] = []
        self.states = Counter(record.state for record in ended)
        self.durations: list[tuple[Cell, float]] = []  # finished cells and their seconds
        self.last = clock()
        self._live = ExitStack()

    def __enter__(self) -> "Screen":
        if self.console.is_terminal:
            self._live.enter_context(Live(get_renderable=self.table, console=self.console, transient=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.close()

    def hear(self, event: "Event") -> None:
        from longspan.arena.runs.runner import CellFinished, CellProgress, CellStarted, RunNote

        now = self.clock()
        if isinstance(event, CellStarted):
            self.waiting.pop(event.cell.key, None)
            self.running[event.cell.key] = event.cell, now, None
        elif isinstance(event, CellProgress):
            cell, since, _ = self.running.get(event.cell.key, (event.cell, now, None))
            self.running[cell.key] = cell, since, event
        elif isinstance(event, RunNote):
            self.say(event.line)
        elif isinstance(event, CellFinished):
            self._end(event.record, now)
        if not self.console.is_terminal and now - self.last >= QUIET:
            self.last = now
            self.say("; ".join([self.summary(), *(f"{key} {_how_far(told)}" for key, _, told in self._rows())]))

    def say(self, line: str) -> None:
        self.console.print(line, markup=False)

    def _end(self, record: "Record", now: float) -> None:
        key = record.cell.key
        self.waiting.pop(key, None)
        _, since, _ = self.running.pop(key, (record.cell, now, None))
        self.states[record.state] += 1
        if record.state == "done":
            self.durations.append((record.cell, now - since))
            if not self.console.is_terminal:
                self.say(f"{key}: {_result(record)}")
        else:
            self.failed.append(record)
            self.say(f"{key}: {record.state}: {record.error or 'no reason given'}")

    def summary(self) -> str:
        from longspan.arena.runs.grid import spell

        done, left = self.states["done"], self.seconds_left()
        failed = sum(self.states.values()) - done
        total = done + failed + len(self.running) + len(self.waiting)
        time_left = "unknown" if left is None else f"about {spell(left)}"
        return f"{done} of {total} cells done, {len(self.running)} running, {failed} failed; time left: {time_left}"

    def seconds_left(self) -> float | None:
        """Estimated from finished cells: by the share of their budget they used, or else by cells of the same task."""
        from longspan.arena.runs.grid import estimate

        def seconds(cell: "Cell") -> float | None:
            planned = estimate(cell)
            similar = [(other, duration) for other, duration in self.durations if other.kind == cell.kind]
            if planned is not None:
                budgets = sum(estimate(other) or 0.0 for other, _ in similar)
                return planned * (sum(duration for _, duration in similar) / budgets if budgets else 1.0)
            similar = [(other, duration) for other, duration in similar if other.task == cell.task] or similar
            return sum(duration for _, duration in similar) / len(similar) if similar else None

        together, alone = 0.0, 0.0
        now = self.clock()
        started = [(cell, now - since) for cell, since, _ in self.running.values()]
        for cell, since in [*started, *((cell, 0.0) for cell in self.waiting.values())]:
            whole = seconds(cell)
            if whole is None:
                return None
            rest = max(0.0, whole - since)
            together, alone = (together, alone + rest) if cell.kind == "speed" else (together + rest, alone)
        return together / self.workers + alone

    def table(self) -> Group:
        """The live table of running cells."""
        from longspan.arena.runs.grid import spell

        table = Table("running", "for", "step", "held out", box=None, padding=(0, 2, 0, 0))
        for key, seconds, told in self._rows():
            held_out = "" if told is None or told.held_out is None else f"{100 * told.held_out:.1f} %"
            step = "starting" if told is None or told.step is None else _steps(told)
            table.add_row(key, spell(round(seconds)), step, held_out)
        return Group(table, Text(self.summary()))

    def _rows(self) -> "list[tuple[str, float, CellProgress | None]]":
        now = self.clock()
        return [(key, now - since, told) for key, (_, since, told) in list(self.running.items())]


def _how_far(told: "CellProgress | None") -> str:
    if told is None or told.step is None:
        return "starting"
    held_out = "" if told.held_out is None else f", {100 * told.held_out:.1f} % held out"
    return f"step {_steps(told)}{held_out}"


def _steps(told: "CellProgress") -> str:
    return f"{told.step:,}" + (f" / {told.steps:,}" if told.steps else "")


def _result(record: "Record") -> str:
    if record.accuracy is not None:
        return f"{100 * record.accuracy:.1f} %"
    return "done" if record.steps_per_second is None else f"{record.steps_per_second:.3g} steps/s"


__all__ = ["Screen"]
