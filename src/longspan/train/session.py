"""From a folder to a trained model: begins or goes on, logs, evaluates, saves, and stops when it is told to."""

import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from longspan.errors import InvalidInput
from longspan.models import folder as model_folder
from longspan.models.base import Model
from longspan.train import checkpoint, saving
from longspan.train.loop import Interrupted, Trainer, listening
from longspan.train.sharding import put, unique, whole

Say = Callable[[str], None]
Show = Callable[[Trainer, Mapping[str, Any]], None]
RESULT = "model"  # of the run's folder: the trained model, ready to be loaded


def train(
    trainer: Trainer,
    *,
    resume: bool = False,
    inexact: bool = False,
    say: Say = lambda line: None,
    show: Show = lambda trainer, row: None,
) -> dict[str, float]:
    """Trains to the end, and writes the result; the figures of the last evaluation come back.

    A signal lets the step be finished, saves, and raises `Interrupted` in all processes.
    """
    run, processes, options = trainer.run, trainer.processes, trainer.options
    with run.held() if processes.first else nullcontext(), listening() as came:
        _begin(trainer, resume, inexact, say)
        for row in trainer.updates():
            progress = trainer.progress
            show(trainer, row)
            if processes.first and (progress.step % options.log_every == 0 or progress.step == trainer.steps):
                run.log({"step": progress.step, "epoch": progress.epoch, **row})
            _watch_loss(trainer, row["loss"], say)
            if _due(options.evaluate_every, progress.step) and trainer.held_out is not None:
                _evaluate(trainer, say)
            # Any process may have got the signal; all must save the same step.
            stopped = processes.any(bool(came))
            patient = not options.patience or progress.waited < options.patience
            if stopped or not patient or _due(options.save_every, progress.step):
                saving.save(trainer)
                _tidy(trainer)
            if stopped:
                raise Interrupted(came[0] if came else signal.SIGTERM)
            if not patient:
                say(f"no better {options.watch} for {options.patience} evaluations: stopped at step {progress.step}")
                break
        return _finish(trainer, say)


def _begin(trainer: Trainer, resume: bool, inexact: bool, say: Say) -> None:
    run = trainer.run
    found, wrong = checkpoint.newest(run.checkpoints)
    for line in wrong:
        say(f"passed over: {line}")
    if not resume:
        if checkpoint.every(run.checkpoints) or (run.folder / RESULT).exists():
            raise InvalidInput(f"{run.folder} holds a run already; resume it, or name another folder")
        return
    if found is None:
        raise InvalidInput(f"{run.folder} has no whole checkpoint to go on from" + (f": {wrong[0]}" if wrong else ""))
    saving.restore(trainer, found, inexact=inexact)
    if trainer.processes.first:
        run.forget_after(trainer.progress.step)
    say(f"going on from step {trainer.progress.step}")


def _watch_loss(trainer: Trainer, loss: float, say: Say) -> None:
    """Keeps a running mean of the loss; one that jumps far above it is said, and undone where that is wanted."""
    progress, options = trainer.progress, trainer.options
    mean = progress.mean_loss
    if mean is not None and options.spike and loss > options.spike * mean:
        say(f"step {progress.step}: the loss is {loss:.3g}, and its running mean {mean:.3g}")
        found, _ = checkpoint.newest(trainer.run.checkpoints)
        if options.roll_back and found is not None:
            batch, epoch = progress.batch, progress.epoch
            saving.restore(trainer, found)
            trainer.progress.batch, trainer.progress.epoch = batch, epoch  # the batches of the spike are left out
            say(f"went back to the weights of step {trainer.progress.step}, and on with the next batch")
            return
    progress.mean_loss = loss if mean is None else 0.98 * mean + 0.02 * loss


def _evaluate(trainer: Trainer, say: Say) -> None:
    progress, options = trainer.progress, trainer.options
    assert trainer.held_out is not None
    with _averaged(trainer):
        figures = trainer.evaluate(trainer.held_out)
    progress.figures = figures
    if options.watch not in figures:
        raise InvalidInput(f"there is no figure {options.watch!r} to watch; there are {', '.join(figures)}")
    value = figures[options.watch]
    better = progress.best is None or (value > progress.best if options.higher else value < progress.best)
    progress.waited = 0 if better else progress.waited + 1
    if better:
        progress.best, progress.best_step = value, progress.step
    if trainer.processes.first:
        trainer.run.log({"step": progress.step, "held_out": figures})
    say(f"step {progress.step}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    if better and options.patience:
        saving.save(trainer)


class _averaged:
    """The running mean in place of the weights, for as long as it is looked at."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.kept: dict[str, torch.Tensor] = {}

    def __enter__(self) -> None:
        for name, tensor in unique(self.trainer.model) if self.trainer.average is not None else ():
            assert self.trainer.average is not None
            self.kept[name] = whole(tensor.detach()).clone()
            put(tensor.data, self.trainer.average[name])

    def __exit__(self, *_: object) -> None:
        for name, tensor in unique(self.trainer.model):
            if name in self.kept:
                put(tensor.data, self.kept[name])


def _tidy(trainer: Trainer) -> None:
    """Drops checkpoints that are neither among the last ones nor the best."""
    if not trainer.processes.first:
        return
    kept = max(trainer.options.keep, trainer.options.average)
    for path in checkpoint.every(trainer.run.checkpoints)[kept:]:
        if int(path.name) != trainer.progress.best_step:
            shutil.rmtree(path)


def _finish(trainer: Trainer, say: Say) -> dict[str, float]:
    if trainer.held_out is not None and _last_evaluation(trainer) != trainer.progress.step:
        _evaluate(trainer, say)
    saving.save(trainer)
    _tidy(trainer)
    weights = _result(trainer, say)
    if trainer.processes.first:
        model_folder.save(trainer.model, trainer.run.folder / RESULT, tokenizer=trainer.tokenizer, weights=weights)
        for part in trainer.objective.results:
            _save_part(trainer, part, weights)
    trainer.processes.wait()
    return trainer.progress.figures


def _save_part(trainer: Trainer, part: str, weights: Mapping[str, torch.Tensor]) -> None:
    """A part of the model by itself, such as ELECTRA's discriminator, which is what is fine-tuned."""
    model = trainer.model.get_submodule(part)
    assert isinstance(model, Model)
    own = {name.removeprefix(f"{part}."): tensor for name, tensor in weights.items() if name.startswith(f"{part}.")}
    model_folder.save(model, trainer.run.folder / part, tokenizer=trainer.tokenizer, weights=own)


def _last_evaluation(trainer: Trainer) -> int:
    every = trainer.options.evaluate_every
    return trainer.progress.step // every * every if every else -1


def _result(trainer: Trainer, say: Say) -> dict[str, torch.Tensor]:
    """The running mean, the mean of the last checkpoints, the best one, or the last: what was asked for."""
    options, progress = trainer.options, trainer.progress
    if trainer.average is not None:
        return {
            name: mean.to(tensor.dtype) for (name, tensor), mean in zip(unique(trainer.model), trainer.average.values())
        }
    if options.average > 1:
        paths = checkpoint.every(trainer.run.checkpoints)[: options.average]
        return mean_of([path / saving.MODEL / model_folder.WEIGHTS for path in paths])
    best = trainer.run.checkpoint(progress.best_step)
    if options.patience and progress.best_step != progress.step and best.is_dir():
        say(f"the result is the best checkpoint, of step {progress.best_step}")
        return checkpoint.read_tensors(best / saving.MODEL / model_folder.WEIGHTS)
    return {name: whole(tensor.detach()).cpu() for name, tensor in unique(trainer.model)}


def mean_of(files: list[Path]) -> dict[str, torch.Tensor]:
    """The mean of several files' weights, taken in float64; what is no floating-point number is the last file's."""
    found = [checkpoint.read_tensors(path) for path in files]
    return {
        name: torch.stack([each[name].double() for each in found]).mean(0).to(last.dtype)
        if last.is_floating_point()
        else last
        for name, last in found[0].items()
    }


def _due(every: int, step: int) -> bool:
    return bool(every) and step % every == 0


__all__ = ["RESULT", "mean_of", "train"]
