"""The training loop, read top to bottom: one process, many under torchrun, or sharded, are the same file."""

import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from longspan.data.base import Batch, Data
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model
from longspan.tasks.base import Metrics, Objective, TaskLoss
from longspan.train.malloc import out_of_memory
from longspan.train.optim import frozen_parameters
from longspan.train.options import TrainOptions
from longspan.train.processes import Processes
from longspan.train.recompute import recompute
from longspan.train.run import Run
from longspan.train.sharding import full_copy, gather_full, part, shard, unique


class Step(nn.Module):
    """The loss as a module's forward pass, since that is what DDP, FSDP and the compiler wrap."""

    def __init__(self, model: Model, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, carried: Any = None) -> TaskLoss:
        return self.objective.loss(self.model, batch, carried)


@dataclass
class TrainProgress:
    """Where a run is; all of it is saved."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # of the epoch, the next one
    skipped: int = 0  # steps with infinite gradients, in a row
    mean_loss: float | None = None  # running, for spikes
    best: float | None = None
    best_step: int = 0
    waited: int = 0  # evaluations since the best
    rolled: int = 0  # times it went back to the same checkpoint
    evaluated: int = 0  # the step of the last evaluation
    figures: dict[str, float] = field(default_factory=dict)  # of the last evaluation


class Interrupted(Exception):
    """A signal came, and the run was saved; `signal` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


class Trainer:
    """Trains a model on data by an objective; `run` makes it begin or go on."""

    def __init__(
        self,
        run: Run,
        model: Model,
        data: Data,
        objective: Objective,
        options: TrainOptions,
        *,
        held_out: Data | None = None,
        test: Data | None = None,
        processes: Processes | None = None,
        tokenizer: Tokenizer | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.run, self.model, self.data, self.held_out, self.test = run, model, data, held_out, test
        self.objective, self.options = objective, options
        self.processes = Processes() if processes is None else processes
        self.tokenizer = tokenizer  # which goes with the model
        self.facts = facts or {}  # of the task, for the reader
        self.progress = TrainProgress()
        self.average: dict[str, Tensor] | None = None  # the running mean of the weights, split as they are
        self.signals: Sequence[int] = ()  # that this process got
        self.stopping = False  # whether any process had got one in the last update
        self.steps = options.total(len(data.batches(0)))
        self.carried: dict[int, Any] = {}  # by micro-batch, where the model remembers the one before
        model.to(self.processes.device)
        self.step: nn.Module = _wrapped(Step(model, objective), options, self.processes)
        self.optimizer = options.optimizer.build(model)

    def updates(self) -> Iterator[Mapping[str, float]]:
        """One update after the other, each with its figures; `progress` says where it is."""
        width = getattr(self.model.options, "width", None)
        batches = self.data.batches(self.progress.epoch)
        while self.progress.step < self.steps:
            if self.progress.batch >= len(batches):
                self.progress.epoch, self.progress.batch = self.progress.epoch + 1, 0
                batches = self.data.batches(self.progress.epoch)
                self.carried = {}
            rate = self.options.schedule.at(self.progress.step + 1, self.steps, width)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            yield {"rate": rate, **self._update(batches[self.progress.batch])}

    def _update(self, numbers: Sequence[int]) -> dict[str, float]:
        began, progress, world = time.perf_counter(), self.progress, self.processes.world
        parts = self._load(numbers)
        count = float(self.processes.sum(torch.tensor([sum(count for _, count in parts)]))[0])
        if count == 0:
            raise InvalidInput(f"batch {progress.batch} of epoch {progress.epoch} has no targets that count")
        self.model.train()
        before = self._remembered()
        if self.options.shard:  # DDP does it by itself
            self.processes.spread(tensor for _, tensor in unique(self.model) if not isinstance(tensor, nn.Parameter))
        sums: dict[str, Tensor] = {}
        for place, (batch, own) in enumerate(parts):
            with self._naming_memory(batch), _gathering(self.step, last=place == len(parts) - 1):
                with _precision(self.options, self.processes.device):
                    loss: TaskLoss = self.step(batch, self.carried.get(place))
                # DDP takes the mean over the processes of what is meant as a sum over all tokens of the batch.
                (loss.total * (world / count if own else 0.0)).backward()
            if loss.carried is not None:
                self.carried[place] = loss.carried
            for name, value in {"loss": loss.total, **loss.parts}.items():
                found = value.detach().double() if own else torch.zeros((), dtype=torch.float64, device=value.device)
                sums[name] = sums[name] + found if name in sums else found
        if self.options.unfreeze_every:
            for parameter in frozen_parameters(self.model, progress.step // self.options.unfreeze_every):
                parameter.grad = None  # neither updated, nor decayed, nor counted in the norm
        norm = gather_full(nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip or math.inf))
        # What all processes must know of this step goes in one exchange, and comes to Python in one copy.
        asked = torch.tensor(float(bool(self.signals)), dtype=torch.float64, device=norm.device)
        totals = self.processes.sum(torch.stack([*sums.values(), asked]))
        *values, stopping, length = torch.cat([totals, norm.detach().double()[None]]).tolist()
        self.stopping = stopping > 0
        figures = {name: value / count for name, value in zip(sums, values)}
        # Gradients and losses are the same everywhere after their reduction: all processes skip or none.
        if math.isfinite(length) and math.isfinite(figures["loss"]):
            self.optimizer.step()
            self._average()
            progress.skipped = 0
        else:
            self._undo(before)
            progress.skipped += 1
            self.check_weights()  # of weights that are not finite, no batch is to blame
        self.optimizer.zero_grad(set_to_none=True)
        progress.step, progress.batch = progress.step + 1, progress.batch + 1
        if progress.skipped >= self.options.bad_steps:  # the same in all processes
            raise InvalidInput(
                f"the gradients were not finite for {progress.skipped} steps, the last in batch "
                f"{progress.batch - 1} of epoch {progress.epoch}; lower the learning rate, or look at its examples "
                f"{', '.join(map(str, list(numbers)[:8]))}"
            )
        took = time.perf_counter() - began
        return {**figures, "gradient": length, "count": count, "seconds": took}

    def check_weights(self) -> None:
        """Refuses weights that are not finite, in all processes at once."""
        own = all(bool(part(parameter.detach()).isfinite().all()) for parameter in self.model.parameters())
        if self.processes.any(not own):
            raise InvalidInput(
                f"the weights are not finite at step {self.progress.step}: an update was too large; lower the learning "
                "rate, give it a warmup, or clip gradients more. A checkpoint before it can be resumed"
            )

    @contextmanager
    def _naming_memory(self, batch: Batch) -> Iterator[None]:
        """Memory that runs out is said with the batch it ran out in."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            rows, *shape = max((tensor.shape for tensor in batch.values()), key=len)
            size = f"length {shape[0]}" if len(shape) == 1 else f"shape {' × '.join(map(str, shape))}"
            raise InvalidInput(
                f"out of memory in batch {self.progress.batch} of epoch {self.progress.epoch}, with {rows} examples of "
                f"{size} at a time; make [task] batch or length smaller, or [train] accumulate larger"
            ) from None

    def _remembered(self) -> tuple[dict[int, Any], list[Tensor]]:
        """What a forward pass changes: the carried states, which are values, and the buffers, which are copied."""
        return dict(self.carried), [buffer.clone() for buffer in self.model.buffers()]

    @torch.no_grad()
    def _undo(self, before: tuple[dict[int, Any], list[Tensor]]) -> None:
        """A step that is skipped leaves nothing behind: NaN in a memory or a centroid would spoil all later steps."""
        self.carried, buffers = before
        for buffer, kept in zip(self.model.buffers(), buffers):
            buffer.copy_(kept)

    @torch.no_grad()
    def _average(self) -> None:
        """The running mean of the weights (Polyak & Juditsky 1992), in float32 or better."""
        if not self.options.ema:
            return
        if self.average is None:
            self.average = {name: tensor.detach().to(_wide(tensor), copy=True) for name, tensor in unique(self.model)}
            return
        for name, tensor in unique(self.model):
            mean = self.average[name]
            if mean.is_floating_point():
                mean.lerp_(tensor.detach().to(mean.dtype), 1 - self.options.ema)
            else:
                mean.copy_(tensor)

    def _load(self, numbers: Sequence[int]) -> list[tuple[Batch, int]]:
        """This process's micro-batches, and how much counts in each; an empty one reads along for nothing."""
        own = list(self.processes.share(numbers))
        # As many pieces in each process: they wait for each other where parameters are split.
        most = math.ceil(len(numbers) / self.processes.world)
        size = math.ceil(most / self.options.accumulate)
        pieces = [own[start : start + size] for start in range(0, most, size)]
        found: list[tuple[Batch, int]] = []
        for piece in pieces:
            batch = self.data.load(piece or list(numbers[:1]), self.progress.epoch)
            placed = {name: tensor.to(self.processes.device) for name, tensor in batch.items()}
            found.append((placed, self.objective.count(batch) if piece else 0))
        return found

    @torch.no_grad()
    def evaluate(self, data: Data) -> dict[str, float]:
        """The figures over all of `data`; of the running mean of the weights, where there is one."""
        with self._reader() as model:
            return measure(model, data, self.objective, self.processes)

    @contextmanager
    def _reader(self) -> Iterator[Model]:
        """The model to look at: whole where it is split, and with the running mean in place of the weights."""
        if self.options.shard:
            yield full_copy(self.model, self.average)
            return
        kept = {}
        if self.average is not None:
            for name, tensor in unique(self.model):
                kept[name] = tensor.detach().clone()
                tensor.copy_(self.average[name])
        try:
            yield self.model
        finally:
            for name, tensor in unique(self.model) if kept else ():
                tensor.copy_(kept[name])


def measure(model: Model, data: Data, objective: Objective, processes: Processes) -> dict[str, float]:
    """The figures of a model over all of `data`, the same whatever the number of processes."""
    found = figures_of(model, data, objective, processes)
    return {} if found is None else found.result()


@torch.no_grad()
def figures_of(model: Model, data: Data, objective: Objective, processes: Processes) -> Metrics | None:
    """What `measure` counts, before it is made into figures; None where there is nothing."""
    model.eval()
    own: Metrics | None = None
    carried: Any = None
    for numbers in data.batches(0):
        share = list(processes.share(numbers))
        if not share:
            continue
        batch = {name: tensor.to(processes.device) for name, tensor in data.load(share, 0).items()}
        figures, carried = objective.measure(model, batch, carried)
        if own is None:
            own = figures
        else:
            own.add(figures)
    return _added(own, processes)


@torch.no_grad()
def measure_finally(model: Model, data: Data, objective: Objective, processes: Processes) -> dict[str, float]:
    """What takes too long to be measured often, such as BLEU of a search; nothing, where the objective has no such."""
    model.eval()
    batches = data.batches(0)
    own = range(processes.rank, len(batches), processes.world)
    found = _added(objective.final(model, data, [batches[place] for place in own]), processes)
    return {} if found is None else found.result()


def _added(own: Metrics | None, processes: Processes) -> Metrics | None:
    found = [figures for figures in processes.gather(own) if figures is not None]
    for figures in found[1:]:
        found[0].add(figures)
    return found[0] if found else None


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype


def _wrapped(step: Step, options: TrainOptions, processes: Processes) -> nn.Module:
    if options.recompute:
        recompute(step.model)
    if options.compile:
        step.model.compile()  # in place: names stay, and what is no forward pass (decoding) stays as it is
    if options.shard:
        if processes.world == 1:
            raise InvalidOption("shard splits the parameters over processes, and there is one; start it by torchrun")
        shard(step)
        return step
    if processes.world == 1:
        return step
    # Not every loss reaches every parameter (a compression that has not begun, a head of another task). Buffers that
    # learn (the centroids of routing) are those of the first process, which are saved.
    return DistributedDataParallel(step, find_unused_parameters=True)


def _gathering(step: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Gradients are exchanged once an update, with the last micro-batch."""
    return nullcontext() if last or not isinstance(step, DistributedDataParallel) else step.no_sync()


def _precision(options: TrainOptions, device: torch.device) -> AbstractContextManager[Any]:
    if options.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextmanager
def listening(spare: int = 1) -> Iterator[list[int]]:
    """The signals that came: a step is finished first, so that what is saved is whole; Ctrl-C twice does not wait.

    `spare` signals count as one: torchrun passes on the Ctrl-C that the terminal has sent to every process already.
    """
    came: list[int] = []

    def hear(number: int, _: Any) -> None:
        if len(came) >= spare and number == signal.SIGINT:
            raise KeyboardInterrupt
        came.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["Interrupted", "Step", "TrainProgress", "Trainer", "figures_of", "listening", "measure", "measure_finally"]
