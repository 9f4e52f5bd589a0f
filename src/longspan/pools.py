"""A process pool whose workers exit silently on Ctrl-C; only the parent process reacts to it."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

INTERRUPT = {signal.SIGINT}


class Pool(ProcessPoolExecutor):
    """Spawned worker processes: a fork of a process in which torch has started threads can hang."""

    def __init__(self, workers: int, initializer: Callable[..., object] | None = None, *arguments: Any) -> None:
        super().__init__(
            workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(initializer, arguments)
        )

    def submit(self, *arguments: Any, **options: Any) -> Any:
        with _blocked():  # new workers inherit the blocked signal while they import their modules
            return super().submit(*arguments, **options)


@contextmanager
def _blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(initializer: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # exit at once, without a traceback
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)
    if initializer is not None:
        initializer(*arguments)


__all__ = ["Pool"]
