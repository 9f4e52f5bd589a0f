"""Limits on the memory and the time that a hostile file may take."""

import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class TooLong(BaseException):
    """No Exception, so that nothing that reads a file catches it."""


def _too_long(*_: Any) -> None:
    raise TooLong


@pytest.fixture
def limits() -> Iterator[None]:
    """A gigabyte beyond what the process has, and twenty seconds of work."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), before[1]))
    handler = signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, 20)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, handler)
    resource.setrlimit(resource.RLIMIT_AS, before)
