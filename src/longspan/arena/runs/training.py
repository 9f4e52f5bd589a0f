"""Trains one cell: builds its task and model, selects the best step on held-out examples, and tests it."""

import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
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
from longspan.arena.runs import pretraining
from longspan.arena.runs.cell import Cell, Record
from longspan.arena.settings import Training
from longspan.arena.tasks import registry as arena_tasks
from longspan.arena.tasks.examples import LabelledSequences, SequenceData, Splits
from longspan.arena.tasks.registry import DataFolders
from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled
from longspan.errors import InvalidInput, InvalidOption
from longspan.measure import machine
from longspan.measure.energy import Meter
from longspan.measure.footprint import Resident
from longspan.models.base import Model
from longspan.tasks.base import Metrics, Objective, TaskLoss
from longspan.tasks.metric_sums import ClassMetrics
from longspan.train.loop import Trainer
from longspan.train.malloc import keep_memory
from longspan.train.processes import Processes
from longspan.train.run import Run

Say = Callable[[Mapping[str, float]], None]
WARM, TIMED = 3, 8  # updates before and while the time of one is measured
PROBE_SHARE = 0.1  # of the budget, after which no more are measured
EVALUATION = 0.3  # held-out examples of all evaluations as a share of those trained on: a tenth of the time
LEAST_HELD_OUT = 200
LEAST_STEPS = 10

clock = time.perf_counter


class Classes(Objective):
    """The cross-entropy of the label, and what a mechanism adds to it."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def count(self, batch: Batch) -> int:
        return len(batch["label"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        total = self._nats(self._logits(model, batch), batch)
        extra = model.auxiliary_loss()
        whole = total if extra is None else total + extra * self.count(batch)
        return TaskLoss(whole, {"nats": total.detach()})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        logits = self._logits(model, batch)
        nats = float(self._nats(logits, batch))
        return ClassMetrics.of(batch["label"].tolist(), logits.argmax(-1).tolist(), self.classes, nats), None

    @staticmethod
    def _logits(model: Model, batch: Batch) -> Tensor:
        logits: Tensor = model(**{name: tensor for name, tensor in batch.items() if name != "label"})
        return logits.float()

    @staticmethod
    def _nats(logits: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(logits, batch["label"], reduction="sum")


@dataclass
class Fitted:
    """What came of one stage of training."""

    seconds: float = 0.0  # of updates alone
    best: float = -math.inf
    best_step: int = 0
    weights: Mapping[str, Tensor] | None = None  # of the best step
    curve: tuple[dict[str, float], ...] = ()


def run(cell: Cell, place: DataFolders, say: Say = lambda row: None) -> Record:
    """The cell's record; what goes wrong is raised. A cell with a number of `steps` gives the same each time."""
    began = datetime.now(UTC)
    torch.set_num_threads(cell.threads)
    entrant = arena_models.find(cell.model)
    if entrant.speed_only:
        raise InvalidOption(f"{cell.model} is the same function as dense, and takes part in speed cells only")
    preset = settings.find(cell.setting, cell.task)
    task = arena_tasks.build(cell.task, preset.task)
    splits = task.splits(place)  # the same for every seed of a cell, so that models differ and tests do not
    say({"length": splits.length, "batch": preset.training.batch})  # should it end for want of memory
    sizes = preset.sizes(entrant.name)
    needs = _needs(splits)
    base = arena_models.parameters(arena_models.build("dense", preset.shell, **needs))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bench = _Bench(cell, splits, preset.training, Processes(device=device), say)
    before = _memory(device)
    keep_memory()  # after the peak was set back, for which freed memory is given back

    def model() -> ArenaEncoder:
        torch.manual_seed(cell.seed)
        return arena_models.build(entrant.name, sizes, **needs, spare=int(cell.pretrain))

    steps = cell.steps or (None if cell.seconds is None else bench.affordable(cell.seconds, model()))
    steps = steps or preset.training.steps
    first = steps // 2 if cell.pretrain else 0
    shell, guessed = model(), None
    with Meter(device=device.type) as meter:  # evaluations too, as they are part of choosing the step
        if first:
            guessed = bench.pretrain(shell, first, cell.task, task.pixels)
        found = bench.train(shell, steps - first, first)
    assert found.weights is not None
    shell.load_state_dict(found.weights)
    tested = bench.test(shell)
    parameters = arena_models.parameters(shell) - cell.pretrain * shell.options.width  # the mask is in no cell's test
    seconds = found.seconds + (guessed.seconds if guessed else 0.0)
    ratio = parameters / base
    return Record(
        cell=cell,
        state="done",
        accuracy=tested,
        held_out=found.best,
        test_count=len(splits.test),
        best_step=found.best_step,
        steps=steps,
        seconds=seconds,
        steps_per_second=steps / seconds if seconds else None,
        memory=_memory(device, before),
        memory_by="allocator" if device.type == "cuda" else "resident",
        parameters=parameters,
        parameters_ratio=ratio,
        flagged=arena_models.flag(ratio),
        baselines=task.baselines(splits),
        curve=found.curve,
        data={**splits.notes, "length": splits.length, "classes": splits.classes, "vocabulary": splits.vocabulary},
        options={
            "task": config.plain(task.options),
            "shell": config.plain(shell.options),
            "training": config.plain(preset.training),
            "train": config.plain(preset.training.train_options(steps - first, cell.seed)),
            "held_out_examples": len(bench.held_out(steps).examples),
            "model": {"title": entrant.title, "kind": entrant.kind},
            **({} if guessed is None else {"pretraining": _said(guessed, first, cell.task, task.pixels)}),
        },
        machine={**machine.describe(), "commit": commit()},
        energy=meter.energy(),
        began=began.isoformat(timespec="seconds"),
    )


class _Bench:
    """The stages of a cell, on the same data."""

    def __init__(self, cell: Cell, splits: Splits, training: Training, processes: Processes, say: Say) -> None:
        self.cell, self.splits, self.training, self.processes, self.say = cell, splits, training, processes, say
        self.objective = Classes(splits.classes)

    def rows(self, examples: LabelledSequences, *, shuffle: bool) -> SequenceData:
        batch = self.training.batch * (1 if shuffle else 2)
        length, padded = self.splits.length, self.splits.padded
        return SequenceData(examples, batch, length=length, padded=padded, seed=self.cell.seed, shuffle=shuffle)

    def held_out(self, steps: int) -> SequenceData:
        """As many as make a tenth of the time, so that a short training is not mostly evaluation."""
        examples = self.splits.held_out
        share = int(EVALUATION * steps * self.training.batch / self.training.evaluations)
        most = min(len(examples), self.training.held_out, max(LEAST_HELD_OUT, share))
        return self.rows(examples.some(sorted(Shuffled(len(examples), 0)[:most])), shuffle=False)

    def trainer(self, model: Model, data: Data, objective: Objective, steps: int, rate: float | None = None) -> Trainer:
        options = self.training.train_options(steps, self.cell.seed, rate)
        torch.manual_seed(self.cell.seed)
        # A trainer's run is where it saves; nothing is saved here, and no folder is made.
        return Trainer(Run(os.devnull), model, data, objective, options, processes=self.processes)

    def affordable(self, seconds: float, model: ArenaEncoder) -> int:
        """Updates that fit into so many seconds, by the time of the first ones, which are then forgotten."""
        trainer = self.trainer(model, self.rows(self.splits.train, shuffle=True), self.objective, WARM + TIMED)
        began, took = clock(), list[float]()
        now = began
        for _ in trainer.updates():
            now, before = clock(), now
            took.append(now - before)
            if len(took) > WARM and now - began > PROBE_SHARE * seconds:
                break
        each = statistics.fmean(took[WARM:])
        return max(LEAST_STEPS, int((seconds - (clock() - began)) / max(each, 1e-9)))

    def pretrain(self, shell: ArenaEncoder, steps: int, task: str, pixels: bool) -> Fitted:
        """Trains what is below the head on hidden inputs."""
        share, mask = pretraining.share_of(task), shell.mask_id
        data = pretraining.HiddenRows(self.rows(self.splits.train, shuffle=True), share, mask)
        held_out = pretraining.HiddenRows(self.held_out(steps), share, mask)
        objective = pretraining.GuessObjective(pixels, self.splits.vocabulary)
        model = pretraining.Guesser(shell, pixels)
        trainer = self.trainer(model, data, objective, steps, self.training.pretrain_rate)
        return self._fit(trainer, held_out, watch="loss", keep=False)

    def train(self, shell: ArenaEncoder, steps: int, before: int) -> Fitted:
        """Trains on the labels, after so many steps of another kind."""
        trainer = self.trainer(shell, self.rows(self.splits.train, shuffle=True), self.objective, steps)
        return self._fit(trainer, self.held_out(steps + before), watch="accuracy", keep=True, before=before)

    def test(self, shell: ArenaEncoder) -> float:
        """Its accuracy on what nothing was chosen by."""
        data = self.rows(self.splits.test, shuffle=False)
        return self.trainer(shell, data, self.objective, 1).evaluate(data)["accuracy"]

    def _fit(self, trainer: Trainer, held_out: Data, *, watch: str, keep: bool, before: int = 0) -> Fitted:
        found, curve, losses = Fitted(), list[dict[str, float]](), list[float]()
        steps, whole = trainer.steps, trainer.steps + before
        every = max(1, math.ceil(steps / self.training.evaluations))
        tell = max(1, steps // 50)
        updates, began = trainer.updates(), clock()
        while (row := next(updates, None)) is not None:
            found.seconds += clock() - began
            step, loss = trainer.progress.step, row["loss"]
            if not math.isfinite(loss):
                raise InvalidInput(
                    f"the loss was {loss} at step {step} of {steps}: training went astray; lower the rate"
                )
            losses.append(loss)
            if step % every == 0 or step == steps:
                figures = trainer.evaluate(held_out)
                figure = figures[watch] if keep else -figures[watch]
                if figure > found.best:
                    found.best, found.best_step = figure, step + before
                    found.weights = _copied(trainer.model) if keep else None
                curve.append(
                    {
                        "step": step + before,
                        "seconds": found.seconds,
                        "loss": statistics.fmean(losses),
                        "held_out": figures[watch],
                    }
                )
                losses.clear()
                self.say(
                    {"step": step + before, "steps": whole, "held_out": figures[watch]}
                    if keep
                    else {"step": step, "steps": whole}
                )
            elif step % tell == 0:
                self.say({"step": step + before, "steps": whole})
            began = clock()
        found.curve = tuple(curve)
        return found


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


def _said(found: Fitted, steps: int, task: str, pixels: bool) -> dict[str, Any]:
    return {
        "steps": steps,
        "seconds": found.seconds,
        "hidden": pretraining.share_of(task),
        "loss": "distance of pixel values" if pixels else "cross-entropy of tokens",
        "best_loss": -found.best,
        "curve": list(found.curve),
    }


def _memory(device: torch.device, before: Any = None) -> Any:
    """Where to count from, or given that, the bytes at the peak."""
    if device.type == "cuda":
        if before is not None:
            return torch.cuda.max_memory_allocated() - before
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return Resident() if before is None else before.peak()


def commit() -> str | None:
    """The commit of this very file, where it is in a repository."""
    file = Path(__file__)
    try:
        asked = ["git", "-C", str(file.parent), "ls-files", "--error-unmatch", file.name]
        subprocess.run(asked, check=True, capture_output=True, timeout=10)
        told = ["git", "-C", str(file.parent), "rev-parse", "HEAD"]
        return subprocess.run(told, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


__all__ = ["Classes", "Fitted", "commit", "run"]
