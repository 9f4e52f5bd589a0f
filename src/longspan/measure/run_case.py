"""Measure one case in this process, which should do nothing else: it changes the settings of malloc and torch.

Starts at a short length and quadruples it; each step estimates time and memory of the next, and a case that would take
too much of either is not run. Memory is measured first, with freed memory returned to the system; then freed memory is
kept, as in use, and the case alternates with a large matrix product.
"""

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import torch

from longspan.errors import LongspanError
from longspan.measure.case import Case, Measured
from longspan.measure.flops import count_work
from longspan.measure.footprint import Resident, give_back_memory, out_of_memory
from longspan.measure.subject import Ready, ready
from longspan.measure.timing import once, turns
from longspan.train.malloc import keep_memory

GEMM = 1024  # rows and columns of the product
FIRST, STEP = 256, 4  # the shortest length to estimate from, and the factor between lengths
ROOM = 0.85  # share of the free memory that a case may take
BRIEF = 5e-3  # least seconds of a repeat, which makes as many calls as that needs


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How often a case is repeated, and how long it may take."""

    repeats: int = 5
    call: float = 20.0  # most seconds of one call
    case: float = 30.0  # most seconds of all repeats together; there are at least two


def run_case(case: Case, patience: Patience, free: int | None) -> Measured:
    """Measure a case, or say why that is not possible; `free` are bytes of free memory."""
    began = _now()
    torch.set_num_threads(case.threads)
    try:
        give_back_memory()
        measured = _too_much(case, patience, free) or _measured(case, patience)
    except LongspanError as error:
        measured = without_result(case, "unsupported", str(error))
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        measured = without_result(case, "memory" if out_of_memory(error) else "failed", line)
    return replace(measured, began=began)


def without_result(case: Case, state: str, error: str) -> Measured:
    """A case without measurements, and why."""
    return Measured.read({"case": asdict(case), "state": state, "error": error, "began": _now()})


def _too_much(case: Case, patience: Patience, free: int | None) -> Measured | None:
    """A result without measurements, if shorter sequences show that the case would take too long or too much memory."""
    lengths = [case.length]
    while lengths[-1] > FIRST:
        lengths.append(max(FIRST, lengths[-1] // STEP))
    for length, longer in zip(lengths[:0:-1], lengths[-2::-1]):
        try:
            built, seconds, bytes_ = _try(case, length)
        except LongspanError:
            continue  # a sequence may be too short for a mechanism; if the full length is, `_measured` raises
        power = max(1.0, built.exponent + (case.kind == "decode"))  # decoding reads the whole sequence first
        seconds, bytes_ = (number * (longer / length) ** power for number in (seconds, bytes_))
        if free is not None and bytes_ > ROOM * free:
            needs = f"takes about {bytes_ / 2**30:.1f} GiB at length {longer}, but only {free / 2**30:.1f} are free"
            return replace(without_result(case, "memory", f"{case.mechanism} {needs}"), exponent=built.exponent)
        if seconds > patience.call:
            takes = f"takes about {seconds:.0f} s at length {longer}, more than the limit of {patience.call:g} s"
            return replace(without_result(case, "slow", f"{case.mechanism} {takes}"), exponent=built.exponent)
    return None


def _try(case: Case, length: int) -> tuple[Ready, float, float]:
    """Build the case at another length and call it once: its seconds, and its bytes including the inputs."""
    keys = None if case.keys is None else max(1, case.keys * length // case.length)
    short, built = replace(case, length=length, keys=keys), list[Ready]()

    def run() -> None:
        built.append(ready(short))
        built[0].call()

    resident = Resident()
    seconds = once(run)
    return built[0], seconds, resident.peak()


def _measured(case: Case, patience: Patience) -> Measured:
    built = ready(case)
    built.call()  # fills caches, which are not part of a call's cost
    resident = Resident()
    seconds = once(built.call)
    memory = resident.peak() if built.state is None else built.state
    keep_memory()
    flops = count_work(built.call)
    # Clocks are too coarse for a short call; but decoding must not lengthen its sequence by much.
    calls = max(1, min(int(BRIEF / max(seconds, 1e-6)), case.length // 64 if case.kind == "decode" else 1000))
    # The product writes into existing memory: allocating after a case of gigabytes would cost 0.1 s.
    left, right, room = (torch.randn(GEMM, GEMM) for _ in range(3))

    def repeat() -> None:
        for _ in range(calls):
            built.call()

    repeats = max(2, min(patience.repeats, int(patience.case / max(seconds * calls, 1e-6))))
    times = turns({"case": repeat, "product": lambda: torch.mm(left, right, out=room)}, repeats)
    return Measured(
        case=case,
        state="done",
        seconds=tuple(seconds_of_calls / calls for seconds_of_calls in times["case"]),
        memory=memory,
        flops=flops,
        gemm=2 * GEMM**3 / min(times["product"]),
        exponent=built.exponent,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


__all__ = ["Patience", "run_case", "without_result"]
