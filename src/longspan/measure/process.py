"""Measure each case in its own process, so that memory is separate and a crash costs one case only.

`python -m longspan.measure.process` reads cases from standard input, one JSON object per line. It imports torch once
and forks for each case (without fork, it measures one case and exits). It answers each line with the measurement, or
with the exit code if the child died.
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
from longspan.measure.run_case import Patience, run_case, without_result

COMMAND = (sys.executable, "-m", "longspan.measure.process")
SETTLE = 60.0  # seconds that a process may take beyond its calls, since others may use the machine


class MeasureProcesses:
    """Measures cases one after another, each in its own process.

    >>> with MeasureProcesses() as processes:
    ...     found = processes.measure(Case(mechanism="window", length=256))
    >>> found.state
    'done'
    """

    def __init__(
        self, patience: Patience | None = None, *, command: Sequence[str] = COMMAND, limit: float | None = None
    ) -> None:
        """A process is killed after `limit` seconds of wall-clock time."""
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
        """End the server process and its child."""
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
        """Measure a case; failures are in its `state` and `error`."""
        if self.server is None or self.server.poll() is not None:
            self._start(case.threads)
        assert self.server is not None and self.server.stdin is not None and self.server.stdout is not None
        kills = machine.memory_kills()
        request = {"case": asdict(case), "patience": asdict(self.patience), "limit": self.limit}
        try:
            self.server.stdin.write(json.dumps(request).encode() + b"\n")
            self.server.stdin.flush()
        except BrokenPipeError:
            return without_result(case, "failed", self._last_words())
        for line in self.server.stdout:
            answer = _object(line)
            if "state" in answer:
                return Measured.read(answer)
            if "ended" in answer:
                return self._died(case, answer["ended"], kills)
        return without_result(case, "failed", self._last_words())

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
            raise InvalidInput(f"cannot start a process to measure in: {error}") from None

    def _died(self, case: Case, code: int, kills: int | None) -> Measured:
        if code == -signal.SIGKILL and kills is not None and (machine.memory_kills() or 0) > kills:
            return without_result(case, "memory", "the system killed its process because memory ran out")
        if code == -signal.SIGALRM:
            return without_result(case, "slow", f"not done after {self.limit:.0f} s")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return without_result(case, "failed", f"its process {how}")

    def _last_words(self) -> str:
        assert self.server is not None and self.errors is not None
        code = self.server.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"the measuring process exited with {code}: {lines[-1][:500] if lines else 'no output'}"


def measure(case: Case, patience: Patience | None = None) -> Measured:
    """Measure a single case."""
    with MeasureProcesses(patience) as processes:
        return processes.measure(case)


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}  # some library printed something
    return value if isinstance(value, dict) else {}


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _measure(request: Mapping[str, Any]) -> None:
    measured = run_case(Case.read(request["case"]), Patience(**request["patience"]), machine.available())
    _say(asdict(measured))


def main() -> int:
    """Serve cases until standard input ends."""
    if not hasattr(os, "fork"):
        _measure(json.loads(sys.stdin.readline()))
        return 0
    import_module("torch._dynamo")  # FlopCounterMode needs it: import once here, not in every child
    gc.freeze()  # the child's collector must not touch, and so copy, the parent's objects
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _last(request)
        signal.signal(signal.SIGTERM, lambda *_, child=child: _end(child))
        _, status = os.waitpid(child, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = os.waitstatus_to_exitcode(status)
        if code:
            _say({"ended": code})
    return 0


def _last(request: Mapping[str, Any]) -> NoReturn:
    """Run one case in the child, and exit."""
    try:
        signal.setitimer(signal.ITIMER_REAL, request["limit"])  # SIGALRM kills it, whatever it is doing
        _measure(request)
        os._exit(0)
    finally:
        os._exit(1)


def _end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["MeasureProcesses", "measure"]
