"""Progress of long measurements: a status on a terminal, otherwise a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from longspan.cli.terminal import Console

QUIET = 10.0  # seconds between lines without a terminal


class Teller:
    """Reports how many cases are measured and estimates the time left."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        every: float,
        most: float | None = None,
        did: str = "measured",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Print at most one line per `every` seconds. Measuring stops after `most` seconds, if that is given."""
        self.say, self.every, self.most, self.did, self.clock = say, every, most, did, clock
        self.first: float | None = None
        self.began: tuple[float, int, int] | None = None  # start of this round: time, cases done, total
        self.last: float | None = None

    def __call__(self, done: int, total: int, now: str) -> None:
        from longspan.arena.runs.grid import spell

        clock = self.clock()
        self.first = clock if self.first is None else self.first
        if self.began is None or self.began[2] != total or done < self.began[1]:
            self.began = clock, done, total
        since, before, _ = self.began
        if self.last is not None and clock - self.last < self.every:
            return
        self.last = clock
        left = ""
        if done > before:
            seconds = (clock - since) / (done - before) * (total - done)
            seconds = seconds if self.most is None else max(0.0, min(seconds, self.first + self.most - clock))
            left = f", about {spell(round(seconds))} left"
        self.say(f"{done} of {total} {self.did}{left}; now {now}")


@contextmanager
def progress(first: str, *, most: float | None = None, did: str = "measured") -> Iterator[Teller]:
    """Report progress on standard error. `first` is printed before the first measurement; `did` says what was done."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if console.is_terminal:
        with console.status(first) as status:
            yield Teller(lambda line: status.update(line), every=0.0, most=most, did=did)
        return
    started = False

    def say(line: str) -> None:
        nonlocal started
        for text in [line] if started else [first, line]:
            console.print(text, markup=False)
        started = True

    yield Teller(say, every=QUIET, most=most, did=did)


__all__ = ["Teller", "progress"]
