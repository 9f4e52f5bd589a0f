"""The training loop of healing: plans, steps, held-out measurements, checkpoints and exact resumption.

Whatever is random follows from the seed and the number of the step, and the number of steps is fixed when a stage
starts. So the position, the trained tensors and the optimizer's state are all that a resumed run needs.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from longspan.adapt.heal.options import HealOptions
from longspan.adapt.heal.schedule import rate
from longspan.adapt.heal.texts import Texts
from longspan.errors import InvalidInput
from longspan.measure.energy import Meter
from longspan.parsing import read_json, refusing
from longspan.train import checkpoint
from longspan.train.loop import Interrupted
from longspan.train.optim import clip_gradients

LARGEST = 1.0  # norm of the gradients of a group
SAVE_EVERY = 60.0  # seconds
POSITION, TENSORS = "position.json", "tensors.safetensors"


class Stage(Protocol):
    """What the loop needs of a stage."""

    name: str

    def parameters(self) -> dict[str, nn.Parameter]: ...
    def groups(self) -> list[dict[str, Any]]: ...
    def prepare(self, ids: Tensor) -> None: ...
    def step(self, ids: Tensor, step: int, steps: int) -> float: ...
    def measure(self, texts: Tensor) -> float: ...
    def finish(self) -> None: ...


@dataclass
class Position:
    """Where a run is. `history` has a line for each held-out measurement."""

    stage: str
    steps: int  # planned
    step: int = 0  # done
    best: float = math.inf
    best_step: int = 0
    stale: int = 0  # measurements since the best
    ended: bool = False
    losses: list[float] = field(default_factory=list)  # of the steps since the last measurement
    spent: dict[str, float] = field(default_factory=dict)  # seconds of training, by stage
    tokens: dict[str, int] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    energy: dict[str, Any] = field(default_factory=dict)  # joules of training, and by which method


@dataclass(frozen=True)
class Progress:
    """A line for the user."""

    stage: str
    step: int
    steps: int
    loss: float
    held_out: float
    best: float
    tokens_per_second: float
    remaining: float  # seconds, estimated


Show = Callable[[Progress], None]


class Run:
    """A run's state folder, beside the output; it is removed when the output is complete."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], signals: list[int]) -> None:
        self.folder, self.settings, self.signals = folder, dict(settings), signals
        self.saved = time.monotonic()
        self.meter: Meter | None = None

    def measure_energy(self, position: Position) -> None:
        """Adds the energy since the last call, or since the run was started again, to the position."""
        if self.meter is not None:
            self.meter.__exit__(None, None, None)
            found, before = self.meter.energy(), position.energy.get("joules", 0.0)
            known = found["joules"] is not None and before is not None
            by = str(found["by"])
            by = by if by.startswith("RAPL") else by.partition(":")[0]  # the rest names the CPU time of one stretch
            position.energy = {"joules": before + found["joules"] if known else None, "by": by}
        self.meter = Meter()
        self.meter.__enter__()

    def found(self) -> Path | None:
        """The newest checkpoint, if it is of a run with the same settings."""
        if not self.folder.is_dir():
            return None
        checkpoint.clear(self.folder)
        newest, _ = checkpoint.newest(self.folder)
        if newest is None:
            return None
        before = read_json(newest / POSITION)["settings"]
        for name, value in self.settings.items():
            if before.get(name) != value:
                raise InvalidInput(
                    f"{self.folder} is of a run with another {name}: {_short(before.get(name))}, now {_short(value)}; "
                    "give what it was started with to resume, another --out, or remove that folder"
                )
        return newest

    def position(self) -> Position | None:
        """Where the run stopped; None: it has not begun."""
        newest = self.found()
        if newest is None:
            return None
        with refusing(newest):
            return Position(**read_json(newest / POSITION)["position"])

    def save(
        self, position: Position, stage: Stage, optimizer: torch.optim.Optimizer, best: Mapping[str, Tensor]
    ) -> None:
        """Writes a checkpoint and removes older ones."""
        self.measure_energy(position)
        number = int(position.stage) * 10**9 + position.step
        target = self.folder / str(number)
        names = {id(parameter): name for name, parameter in stage.parameters().items()}
        tensors = {f"now/{name}": parameter.data for name, parameter in stage.parameters().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in best.items()}
        tensors |= {f"optimizer/{name}": x for name, x in checkpoint.optimizer_tensors(optimizer, names).items()}
        older = [path for path in checkpoint.every(self.folder) if path != target]
        if target.exists():
            shutil.rmtree(target)
        with checkpoint.writing(target) as part:
            checkpoint.write_tensors(part / TENSORS, tensors)
            record = {"settings": self.settings, "position": asdict(position)}
            (part / POSITION).write_text(json.dumps(record) + "\n", encoding="utf-8")
        for path in older:
            shutil.rmtree(path, ignore_errors=True)
        self.saved = time.monotonic()

    def restore(self, stage: Stage, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Puts the newest checkpoint into the stage; returns the best tensors so far."""
        newest = self.found()
        assert newest is not None
        tensors = checkpoint.read_tensors(newest / TENSORS)
        parameters = stage.parameters()
        with refusing(newest), torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[f"now/{name}"])
            for name, tensor in tensors.items():
                kind, _, rest = name.partition("/")
                if kind == "optimizer":
                    owner, _, key = rest.rpartition("/")
                    optimizer.state[parameters[owner]][key] = tensor.clone()
            return {name: tensors[f"best/{name}"].clone() for name in parameters}

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def train_stage(
    run: Run, stage: Stage, texts: Texts, options: HealOptions, position: Position | None, limits: "Limits", show: Show
) -> Position:
    """Trains a stage to its end and leaves the best tensors in the model; `position` is that of the run so far."""
    parameters = stage.parameters()
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(stage.groups(), lr=0.0, weight_decay=0.0, betas=(0.9, 0.99), fused=True)
    if position is None or position.stage != stage.name:
        earlier = Position(stage.name, 0) if position is None else position
        stage.prepare(texts.batch(0, options.batch))
        position = Position(
            stage.name,
            _plan(stage, texts, options, limits),
            spent={**earlier.spent, stage.name: 0.0},
            tokens={**earlier.tokens, stage.name: 0},
            history=earlier.history,
            energy=earlier.energy,
        )
        best = _measure(position, stage, texts, math.nan, {})
        run.save(position, stage, optimizer, best)
    else:
        best = run.restore(stage, optimizer)
        run.measure_energy(position)
    every = max(1, position.steps // options.measurements)
    while not position.ended:
        began = time.monotonic()
        factor = rate(position.step, position.steps)
        for group in optimizer.param_groups:
            group["lr"] = group["top"] * factor
        optimizer.zero_grad(set_to_none=True)
        ids = texts.batch(position.step, options.batch)
        position.losses.append(stage.step(ids, position.step, position.steps))
        for parameter in parameters.values():  # each by itself, so that layers do not depend on each other
            clip_gradients([parameter], LARGEST)
        optimizer.step()
        position.step += 1
        position.tokens[stage.name] += ids.numel()
        last = position.step >= position.steps
        if position.step % every == 0 or last:
            best = _measure(position, stage, texts, sum(position.losses) / len(position.losses), best)
            position.losses = []
        position.spent[stage.name] += time.monotonic() - began
        spent = position.spent[stage.name]
        position.ended = last or spent > limits.seconds or (stage.name == "2" and position.stale >= options.patience)
        if position.step % every == 0 or position.ended:
            speed = position.tokens[stage.name] / max(spent, 1e-9)
            remaining = (position.steps - position.step) * spent / position.step
            line = position.history[-1]
            show(
                Progress(
                    stage.name,
                    position.step,
                    position.steps,
                    line["loss"],
                    line["held_out"],
                    position.best,
                    speed,
                    remaining,
                )
            )
        if run.signals or time.monotonic() - run.saved > SAVE_EVERY or position.ended:
            run.save(position, stage, optimizer, best)
        if run.signals and not position.ended:
            raise Interrupted(run.signals[0])
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(best[name])
            parameter.requires_grad_(False)
            parameter.grad = None
    stage.finish()
    return position


@dataclass(frozen=True)
class Limits:
    """What a stage may use."""

    seconds: float
    tokens: int | None


def _plan(stage: Stage, texts: Texts, options: HealOptions, limits: Limits) -> int:
    """How many steps fit: by tokens, or by the time that one step and one measurement take."""
    if limits.tokens is not None:
        return max(1, round(limits.tokens / (options.batch * texts.length)))
    ids, times = texts.batch(0, options.batch), []
    for _ in range(2):  # the first one warms up
        began = time.monotonic()
        stage.step(ids, 0, 1)
        times.append(time.monotonic() - began)
    for parameter in stage.parameters().values():
        parameter.grad = None
    began = time.monotonic()
    stage.measure(texts.held_out)
    measuring = (time.monotonic() - began) * (options.measurements + 1)
    return max(1, int((limits.seconds - measuring) / times[-1]))


def _measure(position: Position, stage: Stage, texts: Texts, loss: float, best: dict[str, Tensor]) -> dict[str, Tensor]:
    """Measures on held-out texts and notes it; returns the best tensors."""
    held_out = stage.measure(texts.held_out)
    if not math.isfinite(held_out):
        raise InvalidInput(
            f"stage {stage.name}: the held-out loss is {held_out} at step {position.step}; lower the learning rate"
        )
    line = {"stage": stage.name, "step": position.step, "loss": None if math.isnan(loss) else loss}
    position.history.append({**line, "held_out": held_out})
    position.stale += 1
    if held_out < position.best or not best:
        position.best, position.best_step, position.stale = held_out, position.step, 0
        return {name: parameter.detach().clone() for name, parameter in stage.parameters().items()}
    return best


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}…"


__all__ = ["Limits", "Position", "Progress", "Run", "Show", "train_stage"]
