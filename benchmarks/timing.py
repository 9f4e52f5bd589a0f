"""How to time on a machine that is shared and noisy.

Cases are interleaved with the baseline and minima are compared. The time of a call is

    max(CPU time of the calling thread, CPU time of all other threads)

with OpenMP's idle threads told not to spin: with two threads that is the wall time that a quiet machine would give.
"""

import time
from collections.abc import Callable


def once(function: Callable[[], object]) -> float:
    """Seconds that one call takes, by the rule above."""
    all_threads, own = time.process_time(), time.thread_time()
    function()
    own = time.thread_time() - own
    return max(own, time.process_time() - all_threads - own)


def wall(function: Callable[[], object]) -> float:
    """Seconds that one call takes by the clock, which means something on a quiet machine only."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def compare(
    cases: dict[str, Callable[[], object]], repeats: int = 7, clock: Callable[[Callable[[], object]], float] = once
) -> dict[str, float]:
    """The least time of each case, all of them taking turns."""
    best = dict.fromkeys(cases, float("inf"))
    for turn in range(repeats + 1):
        for name, function in cases.items():
            seconds = clock(function)
            if turn:  # the first turn warms up
                best[name] = min(best[name], seconds)
    return best
