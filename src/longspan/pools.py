"""Worker processes that end without a word when Ctrl-C is pressed: the process that started them answers it."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

INTERRUPT = {signal.SIGINT}


class Pool(ProcessPoolExecutor):
    """Processes that are started afresh: a fork of a process whose torch has started threads can hang."""

    def __init__(self, workers: int, initializer: Callable[..., object] | None = None, *arguments: Any) -> None:
        super().__init__(
            workers, mp_context=get_context("spawn"), initializer=_begin, initargs=(initializer, arguments)
        )

    def submit(self, *arguments: Any, **options: Any) -> Any:
        with _blocked():  # which the processes that it starts inherit, while they import what they need
            return super().submit(*arguments, **options)


@contextmanager
def _blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(initializer: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process at once
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)
    if initializer is not None:
        initializer(*arguments)


__all__ = ["Pool"]
