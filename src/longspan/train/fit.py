"""From a folder to a trained model: begins or goes on, logs, evaluates, saves, and stops when it is told to."""

import math
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from longspan.errors import InvalidInput
from longspan.models import folder as model_folder
from longspan.models.base import Model
from longspan.tasks.base import Objective
from longspan.train import checkpoint, saving
from longspan.train.loop import Interrupted, Trainer, listening, measure_finally
from longspan.train.run import METRICS, RESULT
from longspan.train.sharding import gather_full, unique
from longspan.train.tensorboard import TensorBoard

Say = Callable[[str], None]
Show = Callable[[Trainer, Mapping[str, Any]], None]


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
    with ExitStack() as held, listening(1 if processes.world == 1 else 2) as came:
        processes.together(lambda: held.enter_context(run.held()) if processes.first else None)
        _begin(trainer, resume, inexact, say)
        if options.tensorboard and processes.first:
            run.board = TensorBoard(run.folder, trainer.progress.step)
            held.callback(run.board.close)
        trainer.signals = came
        updates = trainer.updates()
        while _patient(trainer, say) and (row := next(updates, None)) is not None:
            show(trainer, row)
            progress = trainer.progress
            if processes.first and (progress.step % options.log_every == 0 or progress.step == trainer.steps):
                run.log({"step": progress.step, "epoch": progress.epoch, **row})
            if _watch_loss(trainer, row, say):
                updates = trainer.updates()  # from where it went back to
                continue
            looked = _due(options.evaluate_every, progress.step) and trainer.held_out is not None
            if looked:
                _evaluate(trainer, say)
            # Any process may have got the signal; all must save the same step.
            alone = processes.world == 1
            stopped = processes.any(bool(came)) if looked or alone else trainer.stopping
            if stopped or _due(options.save_every, progress.step):
                progress.rolled = 0
                saving.save(trainer)
                _tidy(trainer)
            if stopped:
                raise Interrupted(came[0] if came else signal.SIGTERM)
        return _finish(trainer, say)


def _begin(trainer: Trainer, resume: bool, inexact: bool, say: Say) -> None:
    run, processes = trainer.run, trainer.processes
    if not resume:
        processes.together(run.refuse_used)
        if processes.first:
            run.forget_after(0)
        return
    # The first process chooses: reading on different ones would go unseen.
    found, wrong = processes.same(checkpoint.newest(run.checkpoints) if processes.first else (None, []))
    for line in wrong:
        say(f"passed over: {line}")
    if found is None:
        raise InvalidInput(
            f"{run.folder} has no whole checkpoint to go on from: {wrong[0] if wrong else 'none was saved yet'}"
        )
    processes.together(lambda: saving.restore(trainer, found, inexact=inexact))
    if processes.first:
        checkpoint.clear(run.checkpoints)
        if unread := run.unread():
            say(f"dropped {unread} damaged line{'s' * (unread > 1)} of {run.folder / METRICS}")
        run.forget_after(trainer.progress.step)
    say(f"going on from step {trainer.progress.step}")


def _patient(trainer: Trainer, say: Say) -> bool:
    progress, options = trainer.progress, trainer.options
    if not options.patience or progress.waited < options.patience:
        return True
    say(f"no better {options.watch} for {options.patience} evaluations: stopped at step {progress.step}")
    return False


def _watch_loss(trainer: Trainer, row: Mapping[str, float], say: Say) -> bool:
    """Keeps a running mean of the loss; one that jumps far above it is said, and undone where that is wanted: True."""
    progress, options = trainer.progress, trainer.options
    mean, loss = progress.mean_loss, row["loss"]
    if progress.skipped:
        what = f"the gradient is {row['gradient']}" if math.isfinite(loss) else f"the loss is {loss}"
        say(f"step {progress.step}: {what}; its update was left out")
        return False
    if mean is not None and options.spike and loss > options.spike * mean:
        say(f"step {progress.step}: the loss is {loss:.3g}, and its running mean {mean:.3g}")
        found, _ = trainer.processes.same(checkpoint.newest(trainer.run.checkpoints))
        if options.roll_back and found is not None:
            _roll_back(trainer, found, say)
            return True
    progress.mean_loss = loss if mean is None else 0.98 * mean + 0.02 * loss
    return False


def _roll_back(trainer: Trainer, found: Path, say: Say) -> None:
    before = trainer.progress
    if before.rolled >= trainer.options.bad_steps:
        raise InvalidInput(
            f"the loss jumped {before.rolled + 1} times after {found}, the last in batch {before.batch - 1} of epoch "
            f"{before.epoch}; lower the learning rate"
        )
    saving.restore(trainer, found)
    now = trainer.progress
    now.batch, now.epoch, now.rolled = before.batch, before.epoch, before.rolled + 1  # the batches between are left out
    trainer.carried = {}  # it was of other weights
    if trainer.processes.first:
        trainer.run.forget_after(now.step)
        trainer.run.log({"step": now.step, "rolled_back_from": before.step})
    say(f"went back to the weights of step {now.step}, and on with the next batch")


def _evaluate(trainer: Trainer, say: Say) -> None:
    progress, options = trainer.progress, trainer.options
    assert trainer.held_out is not None
    figures = trainer.evaluate(trainer.held_out)
    progress.figures, progress.evaluated = figures, progress.step
    if options.watch not in figures:
        raise InvalidInput(f"there is no figure {options.watch!r} to watch; there are {', '.join(figures)}")
    value = figures[options.watch]
    better = progress.best is None or (value > progress.best if options.higher else value < progress.best)
    better = better and not math.isnan(value)
    progress.waited = 0 if better else progress.waited + 1
    if better:
        progress.best, progress.best_step = value, progress.step
    if trainer.processes.first:
        trainer.run.log({"step": progress.step, "held_out": figures})
    say(f"step {progress.step}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    if better and options.patience:
        saving.save(trainer)


def _tidy(trainer: Trainer) -> None:
    """Drops checkpoints that are neither among the last ones nor the best."""
    if not trainer.processes.first:
        return
    kept = max(trainer.options.keep, trainer.options.average)
    for path in checkpoint.every(trainer.run.checkpoints)[kept:]:
        if int(path.name) != trainer.progress.best_step:
            shutil.rmtree(path)


def _finish(trainer: Trainer, say: Say) -> dict[str, float]:
    progress = trainer.progress
    if trainer.held_out is not None and progress.evaluated != progress.step:
        _evaluate(trainer, say)
    saving.save(trainer)
    _tidy(trainer)
    trainer.processes.wait()
    weights = trainer.processes.together(lambda: _result(trainer, say))

    def write() -> None:
        if not trainer.processes.first:
            return
        # The whole model last: a run that has it is done.
        for part, name in [*((part, part) for part in trainer.objective.results), ("", RESULT)]:
            target = trainer.run.folder / name
            try:
                _save(trainer, target, part, weights)
            except (OSError, SafetensorError) as error:
                raise InvalidInput(f"{target} could not be written: {error}; the checkpoints are whole") from error

    trainer.processes.together(write)
    return {**progress.figures, **_last_figures(trainer, say)}


def _last_figures(trainer: Trainer, say: Say) -> dict[str, float]:
    """Of the result itself, on the test where there is one: what the objective measures at the end only."""
    data = trainer.held_out if trainer.test is None else trainer.test
    if data is None or type(trainer.objective).final is Objective.final:
        return {}
    model = model_folder.load(trainer.run.folder / RESULT).to(trainer.processes.device)
    figures = measure_finally(model, data, trainer.objective, trainer.processes)
    if trainer.processes.first:
        split = "held_out" if trainer.test is None else "test"
        trainer.run.log({"step": trainer.progress.step, "result": {split: figures}})
        say(f"the result, {split}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    return figures


def _save(trainer: Trainer, target: Path, part: str, weights: Mapping[str, torch.Tensor]) -> None:
    """The model, or a part of it by itself, such as ELECTRA's discriminator, which is what is fine-tuned."""
    model = trainer.model.get_submodule(part)
    assert isinstance(model, Model)
    start = f"{part}." if part else ""
    own = {name.removeprefix(start): tensor for name, tensor in weights.items() if name.startswith(start)}
    model_folder.save(model, target, weights=own)
    if trainer.tokenizer is not None:
        trainer.tokenizer.save(target)


def _result(trainer: Trainer, say: Say) -> dict[str, torch.Tensor]:
    """The mean of the last checkpoints, the best one, or the last; of each its running mean, where there is one."""
    options, progress = trainer.options, trainer.progress
    if options.average > 1:
        paths = checkpoint.every(trainer.run.checkpoints)[: options.average]
        say(f"the result is the mean of the checkpoints {', '.join(str(int(path.name)) for path in reversed(paths))}")
        return mean_of([path / saving.MODEL / model_folder.WEIGHTS for path in paths])
    best = trainer.run.checkpoint(progress.best_step)
    if options.patience and progress.best_step != progress.step and best.is_dir():
        say(f"the result is the best checkpoint, of step {progress.best_step}")
        checkpoint.check(best)
        mean = best / saving.AVERAGE
        found = checkpoint.read_tensors(mean if mean.is_file() else best / saving.MODEL / model_folder.WEIGHTS)
    else:
        means = trainer.average or {}
        found = {name: gather_full(means.get(name, tensor).detach()).cpu() for name, tensor in unique(trainer.model)}
    return {name: found[name].to(tensor.dtype) for name, tensor in unique(trainer.model)}


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


__all__ = ["mean_of", "train"]
