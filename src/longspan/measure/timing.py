"""Timing on a shared, noisy machine.

Cases run in turns, and their minimal times are compared. Other programs also take time of the CPU, so what counts is
the CPU time of the busiest thread,

    max(CPU time of the calling thread, mean CPU time of the other threads)

On a quiet machine this equals wall-clock time, if OpenMP's idle threads do not spin (`OMP_WAIT_POLICY=PASSIVE`).
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import torch

Name = TypeVar("Name")
Clock = Callable[[Callable[[], object]], float]


class Seconds(NamedTuple):
    """The time of one call: by the rule above (on CUDA: wall-clock time), and wall-clock time."""

    busy: float
    clock: float


def timed(function: Callable[[], object], device: str = "cpu") -> Seconds:
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.synchronize()
    began, process, thread = time.perf_counter(), time.process_time(), time.thread_time()
    function()
    if cuda:
        torch.cuda.synchronize()
    passed, thread, process = time.perf_counter() - began, time.thread_time() - thread, time.process_time() - process
    return Seconds(passed if cuda else max(thread, (process - thread) / max(1, torch.get_num_threads() - 1)), passed)


def once(function: Callable[[], object]) -> float:
    """Seconds of one call on a CPU, by the rule above."""
    return timed(function).busy


def wall(function: Callable[[], object]) -> float:
    """Wall-clock seconds of one call, which are meaningful on a quiet machine only."""
    return timed(function).clock


def turns(cases: Mapping[Name, Callable[[], object]], repeats: int = 7, clock: Clock = once) -> dict[Name, list[float]]:
    """All times of each case, run in turns; a first warm-up turn does not count."""
    times: dict[Name, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name, function in cases.items():
            seconds = clock(function)
            if turn:
                times[name].append(seconds)
    return times


def compare(cases: Mapping[Name, Callable[[], object]], repeats: int = 7, clock: Clock = once) -> dict[Name, float]:
    """The minimal time of each case, run in turns."""
    return {name: min(times) for name, times in turns(cases, repeats, clock).items()}


__all__ = ["Seconds", "compare", "once", "timed", "turns", "wall"]
