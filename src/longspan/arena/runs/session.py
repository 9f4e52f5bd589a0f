"""A grid from beginning to end: what ends is written down at once, and a signal ends it without a false line."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from longspan.arena.runs.cell import Cell
from longspan.arena.runs.results import Folder
from longspan.arena.runs.runner import Ended, Event, Runner


def run(
    folder: Folder,
    runner: Runner,
    cells: Sequence[Cell],
    *,
    hear: Callable[[Event], None] = lambda event: None,
    stopped: Callable[[], int | None] = lambda: None,
) -> int | None:
    """Runs the cells; the signal that ended it early, whose cells have no record then and are run another time."""
    with closing(runner.run(cells)) as events:
        for event in events:
            if isinstance(event, Ended):
                folder.append(event.record)
            hear(event)
            if (number := stopped()) is not None:
                return number
    return None


@contextmanager
def signals() -> Iterator[Callable[[], int | None]]:
    """While it lasts, SIGINT and SIGTERM are only noted: what is asked says whether one came, and which."""
    came: list[int] = []

    def hear(number: int, frame: object) -> None:
        came.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: came[0] if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["run", "signals"]
