"""Trains one cell: builds its task and model, selects the best step on held-out examples, and tests it."""

import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan import config
from longspan.arena import settings
from longspan.arena.models import registry as arena_models
from longspan.arena.models.arena_encoder import ArenaEncoder
from longspan.arena.models.state_size import state_bytes
from longspan.arena.runs import pretraining
from longspan.arena.runs.cell import Cell, Record
from longspan.arena.settings import Training
from longspan.arena.tasks import registry as arena_tasks
from longspan.arena.tasks.examples import NO_LABEL, LabelledSequences, SequenceData, Splits
from longspan.arena.tasks.registry import DataFolders, TokenGroups
from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled
from longspan.errors import InvalidInput, InvalidOption
from longspan.measure import machine
from longspan.measure.energy import Meter
from longspan.measure.footprint import Resident
from longspan.models.base import Model
from longspan.tasks.base import Metrics, Objective, TaskLoss
from longspan.train.loop import Trainer
from longspan.train.malloc import keep_memory
from longspan.train.processes import Processes
from longspan.train.run import Run

Say = Callable[[Mapping[str, float]], None]
WARM, TIMED = 3, 8  # updates before and while the time of one is measured
PROBE_SHARE = 0.1  # share of the budget that timing may take
EVALUATION = 0.3  # held-out examples of all evaluations relative to training examples: a tenth of the time
LEAST_HELD_OUT = 200
LEAST_STEPS = 10

clock = time.perf_counter


class Classes(Objective):
    """The cross-entropy of the labels, plus the auxiliary losses of mechanisms.

    Labels are one for each text (batch,), or one for each token (batch, length), where some tokens have none.
    `groups` are the names of the parts of a test by which tokens are counted too.
    """

    def __init__(self, classes: int, groups: Sequence[str] = ()) -> None:
        self.classes, self.groups = classes, tuple(groups)

    def count(self, batch: Batch) -> int:
        return int((batch["label"] != NO_LABEL).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        total = self._nats(*self._asked(model, batch))
        extra = model.auxiliary_loss()
        with_auxiliary = total if extra is None else total + extra * self.count(batch)
        return TaskLoss(with_auxiliary, {"nats": total.detach()})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        logits, labels = self._asked(model, batch)
        nats, right = float(self._nats(logits, labels)), logits.argmax(-1) == labels
        group = batch["group"][batch["label"] != NO_LABEL] if self.groups else torch.zeros_like(labels)
        sizes = max(len(self.groups), 1)
        all_of, right_of = (torch.bincount(x, minlength=sizes).tolist() for x in (group, group[right]))
        return LabelCounts(nats, tuple(all_of), tuple(right_of), self.groups), None

    @staticmethod
    def _asked(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and labels of everything that has a label, one below the other."""
        logits: Tensor = model(**{name: tensor for name, tensor in batch.items() if name not in ("label", "group")})
        asked = batch["label"] != NO_LABEL
        return logits[asked].float(), batch["label"][asked]

    @staticmethod
    def _nats(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, reduction="sum")


@dataclass
class LabelCounts(Metrics):
    """Labels and right predictions, in each group if there are groups."""

    nats: float
    count: tuple[int, ...]
    right: tuple[int, ...]
    groups: tuple[str, ...] = ()

    def add(self, other: Metrics) -> None:
        assert isinstance(other, LabelCounts)
        self.nats += other.nats
        self.count = tuple(map(sum, zip(self.count, other.count)))
        self.right = tuple(map(sum, zip(self.right, other.right)))

    def result(self) -> dict[str, float]:
        """With `accuracy NAME` for each group that has labels."""
        total = max(sum(self.count), 1)
        of_groups = zip(self.groups, self.right, self.count)
        return {"loss": self.nats / total, "accuracy": sum(self.right) / total} | {
            f"accuracy {name}": right / count for name, right, count in of_groups if count
        }


@dataclass
class Fitted:
    """The result of one stage of training."""

    seconds: float = 0.0  # of updates alone
    best: float = -math.inf
    best_step: int = 0
    weights: Mapping[str, Tensor] | None = None  # of the best step
    curve: tuple[dict[str, float], ...] = ()


def run(cell: Cell, folders: DataFolders, say: Say = lambda row: None) -> Record:
    """Trains and tests a cell; raises on failure. A cell with a fixed number of `steps` is reproducible."""
    began = datetime.now(UTC)
    torch.set_num_threads(cell.threads)
    arena_model = arena_models.find(cell.model)
    if arena_model.speed_only:
        raise InvalidOption(f"{cell.model} is the same function as dense, and is for speed cells only")
    preset = settings.find(cell.setting, cell.task)
    task = arena_tasks.build(cell.task, preset.task)
    splits = task.splits(folders)  # the same for every seed, so that only the models differ
    say({"length": splits.length, "batch": preset.training.batch})  # for the error message, if memory runs out
    sizes = preset.sizes(arena_model.name)
    needs = _needs(splits)
    base = arena_models.parameters(arena_models.build("dense", preset.shell, **needs))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench = _Bench(cell, splits, preset.training, Processes(device=device), say)
    before = _memory(device)
    keep_memory()  # after the peak was reset, which needs freed memory to be returned

    def model() -> ArenaEncoder:
        torch.manual_seed(cell.seed)
        return arena_models.build(arena_model.name, sizes, **needs, spare=int(cell.pretrain))

    steps = cell.steps or (None if cell.seconds is None else bench.affordable(cell.seconds, model()))
    if steps is None or (cell.steps is None and preset.training.enough):
        steps = min(steps or preset.training.steps, preset.training.steps)
    first = steps // 2 if cell.pretrain else 0
    encoder, pretrained = model(), None
    with Meter(device=device.type) as meter:  # with the evaluations, which select the best step
        if first:
            pretrained = bench.pretrain(encoder, first, cell.task, task.pixels)
        fitted = bench.train(encoder, steps - first, first)
    assert fitted.weights is not None
    encoder.load_state_dict(fitted.weights)
    groups = task.groups(splits)
    accuracy, by_group = bench.test(encoder, groups)
    parameters = (
        arena_models.parameters(encoder) - cell.pretrain * encoder.options.width
    )  # without the mask's vector, which the test does not use
    seconds = fitted.seconds + (pretrained.seconds if pretrained else 0.0)
    ratio = parameters / base
    return Record(
        cell=cell,
        state="done",
        accuracy=accuracy,
        held_out=fitted.best,
        test_count=len(splits.test),
        best_step=fitted.best_step,
        steps=steps,
        seconds=seconds,
        steps_per_second=steps / seconds if seconds else None,
        memory=_memory(device, before),
        memory_by="allocator" if device.type == "cuda" else "resident",
        parameters=parameters,
        parameters_ratio=ratio,
        flagged=arena_models.flag(ratio),
        baselines=task.baselines(splits),
        groups=by_group,
        grouped_by=None if groups is None else groups.by,
        state_bytes=state_bytes(encoder, splits.length),
        curve=fitted.curve,
        data={**splits.notes, "length": splits.length, "classes": splits.classes, "vocabulary": splits.vocabulary},
        options={
            "task": config.plain(task.options),
            "shell": config.plain(encoder.options),
            "training": config.plain(preset.training),
            "train": config.plain(preset.training.train_options(steps - first, cell.seed)),
            "held_out_examples": len(bench.held_out(steps).examples),
            "model": {"title": arena_model.title, "kind": arena_model.kind},
            **(
                {}
                if pretrained is None
                else {"pretraining": _pretraining_options(pretrained, first, cell.task, task.pixels)}
            ),
        },
        machine={**machine.describe(), "commit": commit()},
        energy=meter.energy(),
        began=began.isoformat(timespec="seconds"),
    )


class _Bench:
    """The stages of a cell on the same data: timing, pre-training, training, test."""

    def __init__(self, cell: Cell, splits: Splits, training: Training, processes: Processes, say: Say) -> None:
        self.cell, self.splits, self.training, self.processes, self.say = cell, splits, training, processes, say
        self.objective = Classes(splits.classes)

    def rows(self, examples: LabelledSequences, *, shuffle: bool, groups: TokenGroups | None = None) -> SequenceData:
        return SequenceData(
            examples,
            self.training.batch * (1 if shuffle else 2),
            length=self.splits.length,
            padded=self.splits.padded,
            seed=self.cell.seed,
            shuffle=shuffle,
            groups=None if groups is None else groups.numbers,
        )

    def held_out(self, steps: int) -> SequenceData:
        """Held-out examples: as many as take a tenth of the time, so that short trainings do not mostly evaluate."""
        examples = self.splits.held_out
        share = int(EVALUATION * steps * self.training.batch / self.training.evaluations)
        most = min(len(examples), self.training.held_out, max(LEAST_HELD_OUT, share))
        return self.rows(examples.select(sorted(Shuffled(len(examples), 0)[:most])), shuffle=False)

    def trainer(self, model: Model, data: Data, objective: Objective, steps: int, rate: float | None = None) -> Trainer:
        options = self.training.train_options(steps, self.cell.seed, rate)
        torch.manual_seed(self.cell.seed)
        # A trainer saves to its run; nothing is saved here.
        return Trainer(Run(os.devnull), model, data, objective, options, processes=self.processes)

    def affordable(self, seconds: float, model: ArenaEncoder) -> int:
        """The number of updates that fit into `seconds`, by the time of a few updates, which are discarded."""
        trainer = self.trainer(model, self.rows(self.splits.train, shuffle=True), self.objective, WARM + TIMED)
        began, times = clock(), list[float]()
        now = began
        for _ in trainer.updates():
            now, before = clock(), now
            times.append(now - before)
            if len(times) > WARM and now - began > PROBE_SHARE * seconds:
                break
        seconds_per_update = statistics.fmean(times[WARM:])
        return max(LEAST_STEPS, int((seconds - (clock() - began)) / max(seconds_per_update, 1e-9)))

    def pretrain(self, shell: ArenaEncoder, steps: int, task: str, pixels: bool) -> Fitted:
        """Trains everything below the head to predict hidden inputs."""
        share, mask = pretraining.share_of(task), shell.mask_id
        data = pretraining.HiddenRows(self.rows(self.splits.train, shuffle=True), share, mask)
        held_out = pretraining.HiddenRows(self.held_out(steps), share, mask)
        objective = pretraining.GuessObjective(pixels, self.splits.vocabulary)
        model = pretraining.Guesser(shell, pixels)
        trainer = self.trainer(model, data, objective, steps, self.training.pretrain_rate)
        return self._fit(trainer, held_out, watch="loss", keep=False)

    def train(self, shell: ArenaEncoder, steps: int, before: int) -> Fitted:
        """Trains on the labels, after `before` steps of pre-training."""
        trainer = self.trainer(shell, self.rows(self.splits.train, shuffle=True), self.objective, steps)
        return self._fit(trainer, self.held_out(steps + before), watch="accuracy", keep=True, before=before)

    def test(self, shell: ArenaEncoder, groups: TokenGroups | None = None) -> tuple[float, dict[str, float]]:
        """The test accuracy, and that of each group."""
        names = () if groups is None else groups.names
        data = self.rows(self.splits.test, shuffle=False, groups=groups)
        objective = Classes(self.splits.classes, names)
        metrics = self.trainer(shell, data, objective, 1).evaluate(data)
        by_name = {name: metrics[f"accuracy {name}"] for name in names if f"accuracy {name}" in metrics}
        return metrics["accuracy"], by_name

    def _fit(self, trainer: Trainer, held_out: Data, *, watch: str, keep: bool, before: int = 0) -> Fitted:
        fitted, curve, losses = Fitted(), list[dict[str, float]](), list[float]()
        steps, total = trainer.steps, trainer.steps + before
        every = max(1, math.ceil(steps / self.training.evaluations))
        report_every = max(1, steps // 50)
        updates, began = trainer.updates(), clock()
        while (row := next(updates, None)) is not None:
            fitted.seconds += clock() - began
            step, loss = trainer.progress.step, row["loss"]
            if not math.isfinite(loss):
                raise InvalidInput(f"the loss was {loss} at step {step} of {steps}: training diverged; lower the rate")
            losses.append(loss)
            if step % every == 0 or step == steps:
                metrics = trainer.evaluate(held_out)
                score = metrics[watch] if keep else -metrics[watch]
                if score > fitted.best:
                    fitted.best, fitted.best_step = score, step + before
                    fitted.weights = _copied(trainer.model) if keep else None
                curve.append(
                    {
                        "step": step + before,
                        "seconds": fitted.seconds,
                        "loss": statistics.fmean(losses),
                        "held_out": metrics[watch],
                    }
                )
                losses.clear()
                self.say(
                    {"step": step + before, "steps": total, "held_out": metrics[watch]}
                    if keep
                    else {"step": step, "steps": total}
                )
            elif step % report_every == 0:
                self.say({"step": step + before, "steps": total})
            began = clock()
        fitted.curve = tuple(curve)
        return fitted


def _needs(splits: Splits) -> dict[str, Any]:
    return {
        "length": splits.length,
        "vocabulary": splits.vocabulary,
        "classes": splits.classes,
        "texts": splits.train.texts,
        "grid": splits.grid,
    }


def _copied(model: Model) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _pretraining_options(fitted: Fitted, steps: int, task: str, pixels: bool) -> dict[str, Any]:
    return {
        "steps": steps,
        "seconds": fitted.seconds,
        "hidden": pretraining.share_of(task),
        "loss": "distance of pixel values" if pixels else "cross-entropy of tokens",
        "best_loss": -fitted.best,
        "curve": list(fitted.curve),
    }


def _memory(device: torch.device, before: Any = None) -> Any:
    """Without `before`, the starting point of a measurement; with it, the peak bytes since then."""
    if device.type == "cuda":
        if before is not None:
            return torch.cuda.max_memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return Resident() if before is None else before.peak()


def commit() -> str | None:
    """The git commit of this file, if it is in a repository."""
    file = Path(__file__)
    try:
        git = ["git", "-C", str(file.parent)]
        subprocess.run([*git, "ls-files", "--error-unmatch", file.name], check=True, capture_output=True, timeout=10)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=10)
        return head.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


__all__ = ["Classes", "Fitted", "commit", "run"]
