"""Runs a whole grid: every record is saved at once, and a signal ends the run without a wrong record."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from longspan.arena.runs.cell import Cell
from longspan.arena.runs.results import Folder
from longspan.arena.runs.runner import CellFinished, Event, Runner


def run(
    folder: Folder,
    runner: Runner,
    cells: Sequence[Cell],
    *,
    hear: Callable[[Event], None] = lambda event: None,
    stopped: Callable[[], int | None] = lambda: None,
) -> int | None:
    """Runs the cells; returns the signal that ended the run early. Cells without a record run the next time."""
    with closing(runner.run(cells)) as events:
        for event in events:
            if isinstance(event, CellFinished):
                folder.append(event.record)
            hear(event)
            if (number := stopped()) is not None:
                return number
    return None


@contextmanager
def signals() -> Iterator[Callable[[], int | None]]:
    """Catches SIGINT and SIGTERM; the function that it yields returns the first one that came."""
    received: list[int] = []

    def hear(number: int, frame: object) -> None:
        received.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["run", "signals"]
