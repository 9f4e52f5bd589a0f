"""How to time on a machine that is shared and noisy.

Cases take turns, and what is compared is the least time of each. On a CPU other programs take turns with this one as
well: what counts is the time that the busiest thread of the process worked,

    max(CPU time of the calling thread, mean CPU time of the other threads)

which on a quiet machine is the time by the clock, if OpenMP's idle threads are told not to spin
(`OMP_WAIT_POLICY=PASSIVE`).
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import torch

Name = TypeVar("Name")
Clock = Callable[[Callable[[], object]], float]


class Seconds(NamedTuple):
    """What one call took: by the rule above (on CUDA by the clock), and by the clock."""

    busy: float
    clock: float


def timed(function: Callable[[], object], device: str = "cpu") -> Seconds:
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.synchronize()
    began, every, own = time.perf_counter(), time.process_time(), time.thread_time()
    function()
    if cuda:
        torch.cuda.synchronize()
    passed, own, every = time.perf_counter() - began, time.thread_time() - own, time.process_time() - every
    return Seconds(passed if cuda else max(own, (every - own) / max(1, torch.get_num_threads() - 1)), passed)


def once(function: Callable[[], object]) -> float:
    """Seconds that one call takes on a CPU, by the rule above."""
    return timed(function).busy


def wall(function: Callable[[], object]) -> float:
    """Seconds that one call takes by the clock, which means something on a quiet machine only."""
    return timed(function).clock


def turns(cases: Mapping[Name, Callable[[], object]], repeats: int = 7, clock: Clock = once) -> dict[Name, list[float]]:
    """All times of each case; they take turns, and a first turn, which warms up, does not count."""
    found: dict[Name, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name, function in cases.items():
            seconds = clock(function)
            if turn:
                found[name].append(seconds)
    return found


def compare(cases: Mapping[Name, Callable[[], object]], repeats: int = 7, clock: Clock = once) -> dict[Name, float]:
    """The least time of each case, all of them taking turns."""
    return {name: min(times) for name, times in turns(cases, repeats, clock).items()}


__all__ = ["Seconds", "compare", "once", "timed", "turns", "wall"]
