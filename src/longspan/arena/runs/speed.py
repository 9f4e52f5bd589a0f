"""The efficiency table (Tay et al. 2021, table 2): steps per second and memory of Text's model at one length.

A step is forward, backward and update on random bytes, all of the full length. On CUDA the batch is 32 as in the paper,
with 10 warm-up steps and the median of 30. On a CPU a batch of 32 would take minutes per step: the batch is smaller,
the same for every model and for all lengths up to 4K, and repeats stop at a time limit; the record has the numbers.
There is no attention dropout: many mechanisms do not have it, and with it torch's CPU kernel would not be fused. The
table with its ratios is `efficiency.table`.
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
RATE = 1e-4  # learning rate; it does not affect the speed
LENGTHS = (1024, 2048, 3072, 4096)
LONGER = (8192, 16384)  # if they fit into memory
PROBES = (256, 512, 1024)  # lengths from which the memory at a longer one is estimated
DENSE_WORK = 64e9  # operations of a dense step, which limit the batch on a CPU: some seconds on one core
CPU_SECONDS = 45.0


@dataclass(frozen=True)
class SpeedSubject:
    """A model with its optimizer, ready to be measured."""

    model: nn.Module  # ids (batch, length) to logits (batch, classes)
    optimizer: torch.optim.Optimizer
    vocabulary: int  # 0 is padding and is not drawn
    classes: int
    options: Mapping[str, Any]
    parameters_ratio: float | None = None
    flagged: str | None = None


@dataclass(frozen=True)
class Protocol:
    batch: int = 32
    warm_up: int = 10
    repeats: int = 30
    least: int = 30  # repeats even if they exceed the time limit
    limit_seconds: float | None = None  # for warm-up and repeats
    keep_memory: bool = True  # whether freed memory stays with the process, as in training


def protocol(cell: Cell, device: str, work: Callable[[int], float]) -> Protocol:
    """How a cell is measured; `work` gives the operations of a dense step on one text of a length."""
    assert cell.length is not None
    if device.startswith("cuda"):
        return Protocol()
    batch, work_per_text = 32, work(max(cell.length, LENGTHS[-1]))
    while batch > 1 and batch * work_per_text > DENSE_WORK:
        batch //= 2
    return Protocol(batch, 3, 30, 3, CPU_SECONDS if cell.seconds is None else cell.seconds)


def run(
    cell: Cell,
    say: Callable[[str], None] = lambda line: None,
    size: Callable[[Mapping[str, float]], None] = lambda row: None,
) -> Record:
    """Measures one cell of the table; run it in its own process, since memory is the peak of the process."""
    if cell.kind != "speed" or cell.task != TASK or cell.length is None or cell.length < 1:
        raise InvalidOption(f"a speed cell is of the task {TASK} and has a length, not {cell.task} and {cell.length}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(cell.threads)
    sizes = {**settings.find(cell.setting, TASK).sizes(FUSED), "attention_dropout": 0.0}
    how = protocol(cell, device, partial(_dense_work, sizes))
    size({"length": cell.length, "batch": how.batch})  # for the error message, if memory runs out
    return measure(cell, prepare(cell), how, device, say)


def prepare(cell: Cell, **changes: Any) -> SpeedSubject:
    """The cell's model and optimizer, with the setting's options for Text; `changes` override them."""
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
    arena_model = arena_models.find(cell.model)
    options = {
        "model": {"title": arena_model.title, "kind": arena_model.kind},
        "shell": config.plain(model.options),
        "naive": naive,
        "rate": RATE,
        "optimizer": config.plain(optimizer_options),
    }
    return SpeedSubject(model, optimizer, BYTES, 2, options, ratio, arena_models.flag(ratio))


def _dense_work(sizes: Mapping[str, Any], length: int) -> float:
    """Multiplications and additions of a dense step on one text; a backward pass counts as two forward ones."""
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
    """The speed and memory of a subject at the cell's length."""
    assert cell.length is not None
    began, model = datetime.now(UTC), subject.model.to(device).train()
    record = Record(
        cell=cell,
        state="memory",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        parameters_ratio=subject.parameters_ratio,
        flagged=subject.flagged,
        machine={**machine.describe(), "commit": commit()},
        options={**subject.options, **asdict(how), "length": cell.length, "device": device, "data": "random bytes"},
        began=began.isoformat(timespec="seconds"),
    )
    needed, free = estimate_memory(subject, cell.length, how.batch, device), _free(device)
    record = replace(record, options={**record.options, "estimated_bytes": needed, "free_bytes": free})
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
    _, passed = timed(step, device)  # the second step has the optimizer's state of the first in memory too
    peak = memory.peak()
    optimizer.zero_grad(set_to_none=True)
    saved = saved_bytes(forward, _weights(model))
    say(f"{record.cell.model} at {record.cell.length}: {peak / 2**20:.0f} MiB, {saved / 2**20:.0f} MiB of them kept")
    (keep_memory if how.keep_memory else usual_memory)()
    # If even the least number of steps would exceed the limit, measure one.
    least = how.least if how.limit_seconds is None or passed * how.least <= how.limit_seconds else 1
    begin, warm = time.perf_counter(), 0
    # At least one warm-up step: the first one must map memory anew, which takes time.
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
        "warm_up": warm + 2,  # with the two steps whose memory was measured
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
    """Peak memory in bytes above what was in use at the start, such as the model, which `built` has."""

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


def estimate_memory(subject: SpeedSubject, length: int, batch: int, device: str = "cpu") -> int:
    """An estimate of the bytes of a step, from what shorter texts save: that grows at most with the length squared.

    The backward pass adds about three times the largest tensor, and at least half of what is saved. Each parameter has
    a gradient, two averages, and a temporary while it is updated.
    """
    weights = _weights(subject.model)
    lengths = [length] if length <= PROBES[-1] else list(PROBES)
    kept_at = []
    for shorter in lengths:
        kept_at.append(kept(_forward(subject, 1, shorter, device), weights))
        subject.optimizer.zero_grad(set_to_none=True)
    saved, largest = (
        _extend(lengths, numbers, length)
        for numbers in ([kept_bytes.bytes for kept_bytes in kept_at], [kept_bytes.largest for kept_bytes in kept_at])
    )
    parameters = sum(parameter.numel() * parameter.element_size() for parameter in subject.model.parameters())
    return int(batch * (saved + max(0.5 * saved, 3 * largest)) + 4 * parameters)


def _extend(lengths: list[int], numbers: list[int], length: int) -> float:
    """Extrapolates by the parabola through three values, or the line if it bends down; one value stays as it is."""
    if len(numbers) == 1:
        return numbers[0]
    (n1, n2, n3), (y1, y2, y3) = lengths, numbers
    slope, previous_slope = (y3 - y2) / (n3 - n2), (y2 - y1) / (n2 - n1)
    curvature = max(0.0, (slope - previous_slope) / (n3 - n1))
    return y2 + slope * (length - n2) + curvature * (length - n2) * (length - n3)


def _forward(subject: SpeedSubject, batch: int, length: int, device: str) -> Callable[[], Tensor]:
    draw = torch.Generator().manual_seed(length)
    ids = torch.randint(1, subject.vocabulary, (batch, length), generator=draw).to(device)
    labels = torch.randint(subject.classes, (batch,), generator=draw).to(device)
    return lambda: cross_entropy(subject.model(ids), labels)


def _weights(model: nn.Module) -> list[Tensor]:
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
    "estimate_memory",
    "measure",
    "protocol",
    "run",
    "table",
]
