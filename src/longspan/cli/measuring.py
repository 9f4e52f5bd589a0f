"""What commands that measure show meanwhile: a status on a terminal, and otherwise a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

QUIET = 10.0  # seconds between lines where there is no terminal to draw on


class Teller:
    """Hears how far measuring is, and says so with an estimate of the time left."""

    def __init__(
        self, say: Callable[[str], None], *, every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.say, self.every, self.clock = say, every, clock
        self.began: tuple[float, int, int] | None = None  # of this round: when, how many were done, of how many
        self.last: float | None = None

    def __call__(self, done: int, total: int, now: str) -> None:
        from longspan.arena.grid import spell

        clock = self.clock()
        if self.began is None or self.began[2] != total or done < self.began[1]:
            self.began = clock, done, total
        since, before, _ = self.began
        if self.last is not None and clock - self.last < self.every:
            return
        self.last = clock
        left = ""
        if done > before:
            left = f", about {spell(round((clock - since) / (done - before) * (total - done)))} left"
        self.say(f"{done} of {total} measured{left}; now {now}")


@contextmanager
def progress(first: str) -> Iterator[Teller]:
    """While it lasts, progress goes to standard error; `first` is said before the first measurement."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal:
        with console.status(first) as status:
            yield Teller(lambda line: status.update(line), every=0.0)
        return
    said = False

    def say(line: str) -> None:
        nonlocal said
        for each in [line] if said else [first, line]:
            console.print(each, markup=False)
        said = True

    yield Teller(say, every=QUIET)


__all__ = ["Teller", "progress"]
