"""The efficiency table (Tay et al. 2021, table 2): steps per second and memory of Text's model at one length.

A step is forward, backward and update on random bytes, all of the full length. On CUDA the batch is 32 as in the paper,
10 steps warm up, and the median is of 30. On a CPU a batch of 32 would take minutes a step: the batch is smaller, the
same for every model and for all lengths up to 4K, and repeats stop at a limit of time; the record says what was done.
Attention weights are not dropped: many mechanisms have no such dropout, and torch's kernel for CPUs would not be fused
with it. The table itself, with its ratios, is `efficiency.table`.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longspan import config
from longspan.arena import settings
from longspan.arena.models import registry as arena_models
from longspan.arena.runs.cell import Cell, Record
from longspan.arena.runs.efficiency import FUSED, NAIVE, table
from longspan.arena.runs.training import commit
from longspan.errors import InvalidOption
from longspan.measure import machine
from longspan.measure.energy import Meter
from longspan.measure.footprint import Resident, give_back_memory, kept, out_of_memory, saved_bytes
from longspan.measure.naive import materialise
from longspan.measure.timing import timed
from longspan.train.malloc import keep_memory, usual_memory

TASK, BYTES = "text", 257  # 0 is padding
RATE = 1e-4  # of learning, which takes the same time at any
LENGTHS = (1024, 2048, 3072, 4096)
LONGER = (8192, 16384)  # where they fit
PROBES = (256, 512, 1024)  # lengths from which memory at a longer one is foretold
DENSE_WORK = 64e9  # multiplications and additions of a dense step that a CPU's batch is chosen by: seconds on one core
CPU_SECONDS = 45.0


@dataclass(frozen=True)
class SpeedSubject:
    """A model that is built, and what is said of it."""

    model: nn.Module  # ids (batch, length) to logits (batch, classes)
    optimizer: torch.optim.Optimizer
    vocabulary: int  # of which 0 is padding, and not drawn
    classes: int
    options: Mapping[str, Any]
    parameters_ratio: float | None = None
    flagged: str | None = None


@dataclass(frozen=True)
class Protocol:
    batch: int = 32
    warm_up: int = 10
    repeats: int = 30
    least: int = 30  # repeats that are made whatever time they take
    limit_seconds: float | None = None  # of warming up and repeating
    keep_memory: bool = True  # whether what is freed stays with the process, as in training


def protocol(cell: Cell, device: str, work: Callable[[int], float]) -> Protocol:
    """How a cell is measured; `work` is what a dense step on one text of some length multiplies and adds."""
    assert cell.length is not None
    if device.startswith("cuda"):
        return Protocol()
    batch, each = 32, work(max(cell.length, LENGTHS[-1]))
    while batch > 1 and batch * each > DENSE_WORK:
        batch //= 2
    return Protocol(batch, 3, 30, 3, CPU_SECONDS if cell.seconds is None else cell.seconds)


def run(
    cell: Cell,
    say: Callable[[str], None] = lambda line: None,
    size: Callable[[Mapping[str, float]], None] = lambda row: None,
) -> Record:
    """One cell of the table, which ought to have a process of its own: its peak is that of the process."""
    if cell.kind != "speed" or cell.task != TASK or cell.length is None or cell.length < 1:
        raise InvalidOption(f"a speed cell is of the task {TASK} and has a length, not {cell.task} and {cell.length}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(cell.threads)
    sizes = {**settings.find(cell.setting, TASK).sizes(FUSED), "attention_dropout": 0.0}
    how = protocol(cell, device, partial(_dense_work, sizes))
    size({"length": cell.length, "batch": how.batch})  # should it end for want of memory
    return measure(cell, prepare(cell), how, device, say)


def prepare(cell: Cell, **changes: Any) -> SpeedSubject:
    """The cell's model at its length, and its optimiser, as the setting has them for Text but for some options."""
    assert cell.length is not None
    preset = settings.find(cell.setting, TASK)
    naive = cell.model == NAIVE
    models = []
    for name in (FUSED, FUSED if naive else cell.model):
        torch.manual_seed(cell.seed)
        sizes = {**preset.sizes(name), "attention_dropout": 0.0, **changes}
        models.append(arena_models.build(name, sizes, length=cell.length, vocabulary=BYTES, classes=2))
    base, model = models
    if naive:
        materialise(model)
    ratio = arena_models.parameters(model) / arena_models.parameters(base)
    optimizer_options = preset.training.train_options(1, cell.seed).optimizer
    optimizer = optimizer_options.build(model)
    for group in optimizer.param_groups:
        group["lr"] = RATE
    entrant = arena_models.find(cell.model)
    options = {
        "model": {"title": entrant.title, "kind": entrant.kind},
        "shell": config.plain(model.options),
        "naive": naive,
        "rate": RATE,
        "optimizer": config.plain(optimizer_options),
    }
    return SpeedSubject(model, optimizer, BYTES, 2, options, ratio, arena_models.flag(ratio))


def _dense_work(sizes: Mapping[str, Any], length: int) -> float:
    """Multiplications and additions of a step of the dense model on one text; a backward pass is two forward ones."""
    width, inner = sizes["width"], sizes["heads"] * sizes["head_dim"]
    weights = 4 * width * inner + 2 * width * sizes["hidden"]
    return float(3 * sizes["layers"] * (2 * length * weights + 4 * length**2 * inner))


def measure(
    cell: Cell,
    subject: SpeedSubject,
    how: Protocol,
    device: str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> Record:
    """What a subject does at the cell's length."""
    assert cell.length is not None
    began, model = datetime.now(UTC), subject.model.to(device).train()
    record = Record(
        cell=cell,
        state="memory",
        parameters=sum(each.numel() for each in model.parameters()),
        parameters_ratio=subject.parameters_ratio,
        flagged=subject.flagged,
        machine={**machine.describe(), "commit": commit()},
        options={**subject.options, **asdict(how), "length": cell.length, "device": device, "data": "random bytes"},
        began=began.isoformat(timespec="seconds"),
    )
    needed, free = foretell(subject, cell.length, how.batch, device), _free(device)
    record = replace(record, options={**record.options, "foretold_bytes": needed, "free_bytes": free})
    if free is not None and needed > 0.9 * free:
        line = (
            f"{cell.model} at length {cell.length} with batch {how.batch} takes about {needed / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} are free: leave it out, or run it on a larger machine"
        )
        return replace(record, error=line)
    try:
        return _measured(record, subject, how, device, say)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        where = f"{cell.model} at length {cell.length} with batch {how.batch}"
        return replace(record, error=f"out of memory: {where}: {(str(error).splitlines() or [''])[0]}")


def _measured(record: Record, subject: SpeedSubject, how: Protocol, device: str, say: Callable[[str], None]) -> Record:
    model, optimizer = subject.model, subject.optimizer
    assert record.cell.length is not None
    forward = _forward(subject, how.batch, record.cell.length, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(forward())
        optimizer.step()

    give_back_memory()
    memory = PeakMemory(device)
    step()
    _, passed = timed(step, device)  # the first has made the optimiser's averages, which the second has beside it
    peak = memory.peak()
    optimizer.zero_grad(set_to_none=True)
    saved = saved_bytes(forward, _known(model))
    say(f"{record.cell.model} at {record.cell.length}: {peak / 2**20:.0f} MiB, {saved / 2**20:.0f} MiB of them kept")
    (keep_memory if how.keep_memory else usual_memory)()
    # Where a step takes so long that the least number of them is too many, one has to do.
    least = how.least if how.limit_seconds is None or passed * how.least <= how.limit_seconds else 1
    begin, warm = time.perf_counter(), 0
    # Once at least: what was freed before is not there to be used again, and a step of mapping memory anew is no step.
    while warm < how.warm_up and (not warm or _within(begin - passed, how.limit_seconds, 0.3)):
        step()
        warm += 1
    clock: list[float] = []
    wall: list[float] = []
    with Meter(device=device) as meter:
        while len(clock) < how.repeats and (len(clock) < least or _within(begin, how.limit_seconds, 1.0)):
            busy, passed = timed(step, device)
            clock.append(busy)
            wall.append(passed)
    middle, energy = statistics.median(clock), meter.energy()
    by = "the clock" if device.startswith("cuda") else "processor time of the busiest thread, as on a quiet machine"
    measured = {
        "warm_up": warm + 2,  # those whose memory was measured too
        "repeats": len(clock),
        "clock": by,
        "step_seconds": {"least": min(clock), "median": middle, "most": max(clock)},
        "wall_steps_per_second": 1 / statistics.median(wall),
        "saved_bytes": saved,
        "built_bytes": memory.built,
        "memory_exact": memory.exact,
    }
    say(f"{record.cell.model} at {record.cell.length}: {1 / middle:.3g} steps per second, of {len(clock)}")
    return replace(
        record,
        state="done",
        steps=len(clock),
        seconds=sum(wall),
        steps_per_second=1 / middle,
        memory=peak,
        memory_by="allocator" if device.startswith("cuda") else "resident",
        options={**record.options, **measured},
        energy={
            **energy,
            "joules_per_step": None if energy["joules"] is None else energy["joules"] / len(clock),
        },
    )


class PeakMemory:
    """Bytes at the peak beyond what there was when this was made: the model itself, which every record has apart."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")
        self.resident = None if self.cuda else Resident()
        self.exact = self.resident is None or self.resident.exact
        self.built = 0
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.built = torch.cuda.memory_allocated()
        elif self.resident is not None:
            self.built = self.resident.before

    def peak(self) -> int:
        if self.resident is not None:
            return self.resident.peak()
        return torch.cuda.max_memory_allocated() - self.built


def foretell(subject: SpeedSubject, length: int, batch: int, device: str = "cpu") -> int:
    """About the bytes that a step takes, from what shorter texts keep: it grows at most with the length squared.

    What lives in the backward pass alone is about three of the largest tensor, and at least half of what is kept; and
    each parameter has a gradient, two averages, and something while it is updated.
    """
    known = _known(subject.model)
    lengths = [length] if length <= PROBES[-1] else list(PROBES)
    found = []
    for each in lengths:
        found.append(kept(_forward(subject, 1, each, device), known))
        subject.optimizer.zero_grad(set_to_none=True)
    saved, largest = (
        _extend(lengths, numbers, length) for numbers in ([one.bytes for one in found], [one.largest for one in found])
    )
    parameters = sum(each.numel() * each.element_size() for each in subject.model.parameters())
    return int(batch * (saved + max(0.5 * saved, 3 * largest)) + 4 * parameters)


def _extend(lengths: list[int], numbers: list[int], length: int) -> float:
    """The parabola through three numbers, where it does not bend down; one stands for itself."""
    if len(numbers) == 1:
        return numbers[0]
    (one, two, three), (first, second, third) = lengths, numbers
    slope, before = (third - second) / (three - two), (second - first) / (two - one)
    bend = max(0.0, (slope - before) / (three - one))
    return second + slope * (length - two) + bend * (length - two) * (length - three)


def _forward(subject: SpeedSubject, batch: int, length: int, device: str) -> Callable[[], Tensor]:
    draw = torch.Generator().manual_seed(length)
    ids = torch.randint(1, subject.vocabulary, (batch, length), generator=draw).to(device)
    labels = torch.randint(subject.classes, (batch,), generator=draw).to(device)
    return lambda: cross_entropy(subject.model(ids), labels)


def _known(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _free(device: str) -> int | None:
    return int(torch.cuda.mem_get_info()[0]) if device.startswith("cuda") else machine.available()


def _within(begin: float, limit: float | None, share: float) -> bool:
    return limit is None or time.perf_counter() - begin < share * limit


__all__ = [
    "FUSED",
    "LENGTHS",
    "LONGER",
    "NAIVE",
    "Protocol",
    "SpeedSubject",
    "foretell",
    "measure",
    "protocol",
    "run",
    "table",
]
