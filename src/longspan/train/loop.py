"""The updates of training: `Trainer.updates()`, for one process, several under torchrun, or a sharded model.

`fit.train` calls it and does everything between updates: logging, evaluation, checkpoints.
"""

import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from longspan.data.base import Batch, Data
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model
from longspan.nn.disagreement import HeadDisagreement
from longspan.precision import choose_precision
from longspan.tasks.base import Objective, TaskLoss
from longspan.train import evaluate
from longspan.train.malloc import out_of_memory
from longspan.train.optim import clip_gradients, frozen_parameters
from longspan.train.options import TrainOptions
from longspan.train.processes import Processes
from longspan.train.recompute import recompute
from longspan.train.run import Run
from longspan.train.sharding import full_copy, gather_full, local_part, shard, unique


class Step(nn.Module):
    """The loss as a forward pass: DDP, FSDP and torch.compile wrap modules.

    The model's auxiliary losses are added here for objectives that do not add them themselves.
    """

    def __init__(self, model: Model, objective: Objective, disagreement: HeadDisagreement | None = None) -> None:
        super().__init__()
        self.model, self.objective, self.disagreement = model, objective, disagreement

    def forward(self, batch: Batch, carried: Any = None) -> TaskLoss:
        if self.disagreement is not None:
            self.disagreement.reset()
        loss = self.objective.loss(self.model, batch, carried)
        extra = None if "auxiliary" in loss.parts else self.model.auxiliary_loss()
        if extra is None:
            return loss
        extra = extra * self.objective.count(batch)  # a mean: times the count it is a sum
        parts = {**loss.parts, "auxiliary": extra.detach(), "task": loss.total.detach()}
        return replace(loss, total=loss.total + extra, parts=parts)


@dataclass
class TrainProgress:
    """How far a run is; saved with every checkpoint, under these names."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # the next one of this epoch
    skipped: int = 0  # consecutive steps with gradients that are not finite
    mean_loss: float | None = None  # running mean, to detect spikes
    best: float | None = None
    best_step: int = 0
    waited: int = 0  # evaluations since the best
    rolled: int = 0  # roll-backs to the same checkpoint
    evaluated: int = 0  # the step of the last evaluation
    figures: dict[str, float] = field(default_factory=dict)  # metrics of the last evaluation


class Interrupted(Exception):
    """The run was saved and stopped because of a signal; `signal` is its number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


class Trainer:
    """A model with its data, objective, optimizer and progress. `fit.train(trainer)` trains it."""

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
        self.tokenizer = tokenizer  # saved with the model
        self.facts = facts or {}  # about the task, to be printed
        self.progress = TrainProgress()
        self.average: dict[str, Tensor] | None = None  # running mean of the weights, sharded as they are
        self.signals: Sequence[int] = ()  # received by this process
        self.stopping = False  # whether any process had received one in the last update
        self.steps = options.total(len(data.batches(0)))
        self.carried: dict[int, Any] = {}  # state from the last batch, by micro-batch, of a recurrent model
        model.to(self.processes.device)
        # What "auto" stands for, and why; the first process decides for all.
        self.precision, self.precision_reason = options.precision, ""
        if options.precision == "auto":
            chosen = choose_precision(self.processes.device) if self.processes.first else ("", "")
            self.precision, self.precision_reason = self.processes.same(chosen)
        self.step: nn.Module = _wrapped(Step(model, objective, _disagreement(model, options)), options, self.processes)
        self.optimizer = options.optimizer.build(model)

    def updates(self) -> Iterator[Mapping[str, float]]:
        """Make one update after another and yield its metrics; `progress` counts them."""
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
        micro_batches = self._load(numbers)
        count = float(self.processes.sum(torch.tensor([sum(targets for _, targets in micro_batches)]))[0])
        if count == 0:
            raise InvalidInput(f"batch {progress.batch} of epoch {progress.epoch} has no targets that count")
        self.model.train()
        before = self._snapshot()
        if self.options.shard:  # DDP does this itself
            self.processes.spread(tensor for _, tensor in unique(self.model) if not isinstance(tensor, nn.Parameter))
        sums: dict[str, Tensor] = {}
        for index, (batch, targets) in enumerate(micro_batches):
            with self._naming_memory(batch), _gathering(self.step, last=index == len(micro_batches) - 1):
                with _precision(self.precision, self.processes.device):
                    loss: TaskLoss = self.step(batch, self.carried.get(index))
                # DDP averages over processes, but the loss is a sum over all tokens of the batch.
                torch.autograd.backward(loss.total * (world / count if targets else 0.0))
            if loss.carried is not None:
                self.carried[index] = loss.carried
            for name, value in {"loss": loss.total, **loss.parts}.items():
                zero = torch.zeros((), dtype=torch.float64, device=value.device)
                sums[name] = sums.get(name, zero) + (value.detach().double() if targets else zero)
        if self.options.unfreeze_every:
            for parameter in frozen_parameters(self.model, progress.step // self.options.unfreeze_every):
                parameter.grad = None  # no update, no weight decay, not part of the norm
        norm = gather_full(clip_gradients(self.model.parameters(), self.options.clip or math.inf))
        # One exchange between processes and one copy to Python per update.
        signalled = torch.tensor(float(bool(self.signals)), dtype=torch.float64, device=norm.device)
        totals = self.processes.sum(torch.stack([*sums.values(), signalled]))
        *values, stopping, gradient = torch.cat([totals, norm.detach().double()[None]]).tolist()
        self.stopping = stopping > 0
        metrics = {name: value / count for name, value in zip(sums, values)}
        # Reduced gradients and losses are equal in all processes: all skip, or none.
        if math.isfinite(gradient) and math.isfinite(metrics["loss"]):
            self.optimizer.step()
            self._average()
            progress.skipped = 0
        else:
            self._undo(before)
            progress.skipped += 1
            self.check_weights()  # if the weights are not finite, the batch is not to blame
        self.optimizer.zero_grad(set_to_none=True)
        progress.step, progress.batch = progress.step + 1, progress.batch + 1
        if progress.skipped >= self.options.bad_steps:  # the same in all processes
            raise InvalidInput(
                f"the gradients were not finite for {progress.skipped} steps, the last in batch "
                f"{progress.batch - 1} of epoch {progress.epoch}; lower the learning rate, or look at its examples "
                f"{', '.join(map(str, list(numbers)[:8]))}"
            )
        return {**metrics, "gradient": gradient, "count": count, "seconds": time.perf_counter() - began}

    def check_weights(self) -> None:
        """Raise in all processes if any weight is not finite."""
        finite = all(bool(local_part(parameter.detach()).isfinite().all()) for parameter in self.model.parameters())
        if self.processes.any(not finite):
            raise InvalidInput(
                f"the weights are not finite at step {self.progress.step}: an update was too large; lower the learning "
                "rate, add a warmup, or clip gradients more. Earlier checkpoints can be resumed"
            )

    @contextmanager
    def _naming_memory(self, batch: Batch) -> Iterator[None]:
        """Name the batch in the error when memory runs out."""
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

    def _snapshot(self) -> tuple[dict[int, Any], list[Tensor]]:
        """What a forward pass changes: the carried states (immutable) and the buffers (copied)."""
        return dict(self.carried), [buffer.clone() for buffer in self.model.buffers()]

    @torch.no_grad()
    def _undo(self, before: tuple[dict[int, Any], list[Tensor]]) -> None:
        """Restore the snapshot after a skipped step: NaN in a memory or a centroid would spoil all later steps."""
        self.carried, buffers = before
        for buffer, saved in zip(self.model.buffers(), buffers):
            buffer.copy_(saved)

    @torch.no_grad()
    def _average(self) -> None:
        """Update the running mean of the weights (Polyak & Juditsky 1992), in float32 or better."""
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
        """This process's micro-batches and their numbers of targets.

        Every process gets as many, since sharded processes wait for each other; one that has no examples left loads an
        example that counts nothing.
        """
        share = list(self.processes.share(numbers))
        most = math.ceil(len(numbers) / self.processes.world)
        size = math.ceil(most / self.options.accumulate)
        pieces = [share[start : start + size] for start in range(0, most, size)]
        micro_batches: list[tuple[Batch, int]] = []
        for piece in pieces:
            batch = self.data.load(piece or list(numbers[:1]), self.progress.epoch)
            on_device = {name: tensor.to(self.processes.device) for name, tensor in batch.items()}
            micro_batches.append((on_device, self.objective.count(batch) if piece else 0))
        return micro_batches

    @torch.no_grad()
    def evaluate(self, data: Data) -> dict[str, float]:
        """The metrics over all of `data`, with the running mean of the weights if there is one (`ema`)."""
        with self._evaluated_model() as model:
            return evaluate.evaluate(model, data, self.objective, self.processes)

    @contextmanager
    def _evaluated_model(self) -> Iterator[Model]:
        """The model, unsharded, and with the running mean in place of its weights."""
        if self.options.shard:
            yield full_copy(self.model, self.average)
            return
        weights = {}
        if self.average is not None:
            for name, tensor in unique(self.model):
                weights[name] = tensor.detach().clone()
                tensor.copy_(self.average[name])
        try:
            yield self.model
        finally:
            for name, tensor in unique(self.model) if weights else ():
                tensor.copy_(weights[name])


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype


def _disagreement(model: Model, options: TrainOptions) -> HeadDisagreement | None:
    if not options.disagreement:
        return None
    kinds = (options.disagreement,) if isinstance(options.disagreement, str) else options.disagreement
    return HeadDisagreement(model, kinds, options.disagreement_weight)


def _wrapped(step: Step, options: TrainOptions, processes: Processes) -> nn.Module:
    if options.recompute:
        recompute(step.model)
    if options.compile:
        step.model.compile()  # in place: keeps parameter names, and compiles only the forward pass
    if options.shard:
        if processes.world == 1:
            raise InvalidOption("shard splits the parameters over processes, but there is only one; use torchrun")
        shard(step)
        return step
    if processes.world == 1:
        return step
    # Some losses do not reach every parameter (a compression that has not begun, a head of another task). Learned
    # buffers (the centroids of routing) are taken from the first process, which saves them.
    return DistributedDataParallel(step, find_unused_parameters=True)


def _gathering(step: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Exchange gradients once per update, with the last micro-batch."""
    return nullcontext() if last or not isinstance(step, DistributedDataParallel) else step.no_sync()


def _precision(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextmanager
def catch_signals(first: int = 1) -> Iterator[list[int]]:
    """Collect SIGTERM and Ctrl-C in a list, so that the current step can be finished and saved.

    The first `first` signals are collected; another Ctrl-C raises KeyboardInterrupt at once. torchrun needs 2: it
    passes on the Ctrl-C that the terminal sends to every process anyway.
    """
    received: list[int] = []

    def receive(number: int, _: Any) -> None:
        if len(received) >= first and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["Interrupted", "Step", "TrainProgress", "Trainer", "catch_signals"]
