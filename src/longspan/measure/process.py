"""Each case is measured in a process of its own: its memory is its own, and what happens to it costs that case.

`python -m longspan.measure.process` reads cases from its standard input, one JSON object a line. It has imported torch
once, and makes a copy of itself for each case (where the system cannot, it measures one case and ends). To each it
answers with what was measured, unless the copy died, and then with how the copy ended.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from types import TracebackType
from typing import IO, Any, NoReturn, Self

from longspan.errors import InvalidInput
from longspan.measure import machine
from longspan.measure.case import Case, Measured
from longspan.measure.run_case import Patience, attempt, lost

COMMAND = (sys.executable, "-m", "longspan.measure.process")
SETTLE = 60.0  # seconds that a process may take beyond its calls, as others may use the machine too


class MeasureProcesses:
    """Measures cases, each in a process of its own, one after another.

    >>> with Processes() as processes:
    ...     found = processes.measure(Case(mechanism="window", length=256))
    >>> found.state
    'done'
    """

    def __init__(
        self, patience: Patience | None = None, *, command: Sequence[str] = COMMAND, limit: float | None = None
    ) -> None:
        """`limit` is of seconds by the clock after which a process is ended."""
        self.patience, self.command = Patience() if patience is None else patience, tuple(command)
        self.limit = SETTLE + 4 * (self.patience.case + 6 * self.patience.call) if limit is None else limit
        self.server: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process that makes the others, and the one that it waits for."""
        if self.server is not None:
            for pipe in (self.server.stdin, self.server.stdout):
                assert pipe is not None
                pipe.close()
            self.server.terminate()
            self.server.wait()
        if self.errors is not None:
            self.errors.close()
        self.server = self.errors = None

    def measure(self, case: Case) -> Measured:
        """What a case takes on this machine; what goes wrong is in its `state` and `error`."""
        if self.server is None or self.server.poll() is not None:
            self._start(case.threads)
        assert self.server is not None and self.server.stdin is not None and self.server.stdout is not None
        kills = machine.memory_kills()
        asked = {"case": asdict(case), "patience": asdict(self.patience), "limit": self.limit}
        try:
            self.server.stdin.write(json.dumps(asked).encode() + b"\n")
            self.server.stdin.flush()
        except BrokenPipeError:
            return lost(case, "failed", self._last_words())
        for line in self.server.stdout:
            answer = _object(line)
            if "state" in answer:
                return Measured.read(answer)
            if "ended" in answer:
                return self._died(case, answer["ended"], kills)
        return lost(case, "failed", self._last_words())

    def _start(self, threads: int) -> None:
        self.close()
        environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        try:
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process that writes to it
            self.server = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                env={**os.environ, **environment},
            )
        except OSError as error:
            self.close()
            raise InvalidInput(f"a process to measure in cannot be started: {error}") from None

    def _died(self, case: Case, code: int, kills: int | None) -> Measured:
        if code == -signal.SIGKILL and kills is not None and (machine.memory_kills() or 0) > kills:
            return lost(case, "memory", "the system ended its process for want of memory")
        if code == -signal.SIGALRM:
            return lost(case, "slow", f"not done after {self.limit:.0f} s")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return lost(case, "failed", f"its process {how}")

    def _last_words(self) -> str:
        assert self.server is not None and self.errors is not None
        code = self.server.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"the process that measures ended with {code}: {lines[-1][:500] if lines else 'it said nothing'}"


def measure(case: Case, patience: Patience | None = None) -> Measured:
    """One case alone."""
    with MeasureProcesses(patience) as processes:
        return processes.measure(case)


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}  # some library printed something
    return found if isinstance(found, dict) else {}


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _measure(asked: Mapping[str, Any]) -> None:
    found = attempt(Case.read(asked["case"]), Patience(**asked["patience"]), machine.available())
    _say(asdict(found))


def main() -> int:
    """Answers until nobody asks any more."""
    if not hasattr(os, "fork"):
        _measure(json.loads(sys.stdin.readline()))
        return 0
    import_module("torch._dynamo")  # which counting imports on its first use: once here, not in every copy
    gc.freeze()  # what is here already is no garbage of a case, and looking through it would copy it
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _last(asked)
        signal.signal(signal.SIGTERM, lambda *_, child=child: _end(child))
        _, status = os.waitpid(child, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = os.waitstatus_to_exitcode(status)
        if code:
            _say({"ended": code})
    return 0


def _last(asked: Mapping[str, Any]) -> NoReturn:
    """All that a copy does."""
    try:
        signal.setitimer(signal.ITIMER_REAL, asked["limit"])  # by which it is ended, whatever it is doing
        _measure(asked)
        os._exit(0)
    finally:
        os._exit(1)


def _end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["MeasureProcesses", "measure"]
