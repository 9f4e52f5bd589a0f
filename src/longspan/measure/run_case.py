"""What a case takes, measured in this process, which is changed by it and should do nothing else.

It begins at a short length and goes up in steps of four times as much; each step foretells time and memory of the next,
and what would take too much of either is not tried. Memory is measured first, where freed memory goes back to the
system; then it is kept, as in use, and the case takes turns with a product of large matrices.
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
FIRST, STEP = 256, 4  # the shortest length that foretells, and how many times longer the next is
ROOM = 0.85  # of the memory that is free, what a case may take
BRIEF = 5e-3  # seconds that a repeat takes at least, by as many calls as are needed


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How often a case is repeated, and how long it is waited for."""

    repeats: int = 5
    call: float = 20.0  # seconds of one call; a longer one is not begun
    case: float = 30.0  # seconds of all repeats together, of which there are two at least


def attempt(case: Case, patience: Patience, free: int | None) -> Measured:
    """What the case takes, or why that is not known; `free` are bytes of memory."""
    began = _now()
    torch.set_num_threads(case.threads)
    try:
        give_back_memory()
        found = _too_much(case, patience, free) or _measured(case, patience)
    except LongspanError as error:
        found = lost(case, "unsupported", str(error))
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        found = lost(case, "memory" if out_of_memory(error) else "failed", line)
    return replace(found, began=began)


def lost(case: Case, state: str, error: str) -> Measured:
    """A case that has no figures, and why."""
    return Measured.read({"case": asdict(case), "state": state, "error": error, "began": _now()})


def _too_much(case: Case, patience: Patience, free: int | None) -> Measured | None:
    """What shorter texts say of this one, if it would take too long or too much memory."""
    lengths = [case.length]
    while lengths[-1] > FIRST:
        lengths.append(max(FIRST, lengths[-1] // STEP))
    for length, longer in zip(lengths[:0:-1], lengths[-2::-1]):
        try:
            made, seconds, bytes_ = _try(case, length)
        except LongspanError:
            continue  # a short text may have no room for what the mechanism does; if a long one has none, it says so
        power = max(1.0, made.exponent + (case.kind == "decode"))  # the whole text is read before decoding
        seconds, bytes_ = (number * (longer / length) ** power for number in (seconds, bytes_))
        if free is not None and bytes_ > ROOM * free:
            needs = f"takes about {bytes_ / 2**30:.1f} GiB at length {longer}, and {free / 2**30:.1f} are free"
            return replace(lost(case, "memory", f"{case.mechanism} {needs}"), exponent=made.exponent)
        if seconds > patience.call:
            takes = f"takes about {seconds:.0f} s at length {longer}, and {patience.call:g} are waited for"
            return replace(lost(case, "slow", f"{case.mechanism} {takes}"), exponent=made.exponent)
    return None


def _try(case: Case, length: int) -> tuple[Ready, float, float]:
    """The case at another length, made and called once: its seconds, and bytes with all that it begins with."""
    keys = None if case.keys is None else max(1, case.keys * length // case.length)
    short, found = replace(case, length=length, keys=keys), list[Ready]()

    def run() -> None:
        found.append(ready(short))
        found[0].call()

    resident = Resident()
    seconds = once(run)
    return found[0], seconds, resident.peak()


def _measured(case: Case, patience: Patience) -> Measured:
    made = ready(case)
    made.call()  # what is made once and kept is no part of what a call takes
    resident = Resident()
    seconds = once(made.call)
    memory = resident.peak() if made.state is None else made.state
    keep_memory()
    flops = count_work(made.call)
    # A clock ticks too slowly for a short call; but a text that is decoded must not grow by much.
    calls = max(1, min(int(BRIEF / max(seconds, 1e-6)), case.length // 64 if case.kind == "decode" else 1000))
    # Into memory that is there: what is freed after a case of gigabytes pays for giving those back, 0.1 s.
    left, right, room = (torch.randn(GEMM, GEMM) for _ in range(3))

    def repeat() -> None:
        for _ in range(calls):
            made.call()

    repeats = max(2, min(patience.repeats, int(patience.case / max(seconds * calls, 1e-6))))
    times = turns({"case": repeat, "product": lambda: torch.mm(left, right, out=room)}, repeats)
    return Measured(
        case=case,
        state="done",
        seconds=tuple(each / calls for each in times["case"]),
        memory=memory,
        flops=flops,
        gemm=2 * GEMM**3 / min(times["product"]),
        exponent=made.exponent,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


__all__ = ["Patience", "attempt", "lost"]
