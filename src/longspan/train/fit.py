"""Run a training to its end: `train` makes updates, logs, evaluates, saves checkpoints and writes the final model.

`recipe.py` builds the `Trainer` that is passed in; `loop.py` makes the single updates.
"""

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
from longspan.models import adapters
from longspan.models import folder as model_folder
from longspan.models.base import Model
from longspan.tasks.base import Objective
from longspan.train import checkpoint, saving
from longspan.train.evaluate import evaluate_final
from longspan.train.loop import Interrupted, Trainer, catch_signals
from longspan.train.run import METRICS, RESULT
from longspan.train.sharding import gather_full, unique
from longspan.train.tensorboard import TensorBoard

ADAPTER = "adapter"  # the folder of the small weights, beside the whole model
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
    """Train to the end, write the model, and return the metrics of the last evaluation.

    `say` receives messages, `show` every update's metrics. After SIGTERM or Ctrl-C, the step is finished and saved, and
    `Interrupted` is raised in all processes.
    """
    run, processes, options = trainer.run, trainer.processes, trainer.options
    with ExitStack() as held, catch_signals(1 if processes.world == 1 else 2) as signals:
        processes.together(lambda: held.enter_context(run.held()) if processes.first else None)
        _begin(trainer, resume, inexact, say)
        if options.tensorboard and processes.first:
            run.board = TensorBoard(run.folder, trainer.progress.step)
            held.callback(run.board.close)
        trainer.signals = signals
        updates = trainer.updates()
        while _patient(trainer, say) and (row := next(updates, None)) is not None:
            show(trainer, row)
            progress = trainer.progress
            if processes.first and (progress.step % options.log_every == 0 or progress.step == trainer.steps):
                run.log({"step": progress.step, "epoch": progress.epoch, **row})
            if _rolled_back(trainer, row, say):
                updates = trainer.updates()  # `progress` has changed
                continue
            evaluated = _due(options.evaluate_every, progress.step) and trainer.held_out is not None
            if evaluated:
                _evaluate(trainer, say)
            # The signal may have reached any process; all must save the same step.
            alone = processes.world == 1
            stopped = processes.any(bool(signals)) if evaluated or alone else trainer.stopping
            if stopped or _due(options.save_every, progress.step):
                progress.rolled = 0
                saving.save(trainer)
                _tidy(trainer)
            if stopped:
                raise Interrupted(signals[0] if signals else signal.SIGTERM)
        return _finish(trainer, say)


def _begin(trainer: Trainer, resume: bool, inexact: bool, say: Say) -> None:
    run, processes = trainer.run, trainer.processes
    if trainer.precision_reason:
        say(f"precision auto: {trainer.precision}, as {trainer.precision_reason}")
    if not resume:
        processes.together(run.refuse_used)
        if processes.first:
            run.forget_after(0)
        return
    # The first process chooses: if they chose different checkpoints, nobody would notice.
    newest, damaged = processes.same(checkpoint.newest(run.checkpoints) if processes.first else (None, []))
    for line in damaged:
        say(f"skipped: {line}")
    if newest is None:
        raise InvalidInput(
            f"{run.folder} has no complete checkpoint to resume from: {damaged[0] if damaged else 'none was saved yet'}"
        )
    processes.together(lambda: saving.restore(trainer, newest, inexact=inexact))
    if processes.first:
        checkpoint.clear(run.checkpoints)
        if unread := run.unread():
            say(f"dropped {unread} damaged line{'s' * (unread > 1)} of {run.folder / METRICS}")
        run.forget_after(trainer.progress.step)
    say(f"resuming from step {trainer.progress.step}")


def _patient(trainer: Trainer, say: Say) -> bool:
    progress, options = trainer.progress, trainer.options
    if not options.patience or progress.waited < options.patience:
        return True
    say(f"no better {options.watch} for {options.patience} evaluations: stopped at step {progress.step}")
    return False


def _rolled_back(trainer: Trainer, row: Mapping[str, float], say: Say) -> bool:
    """Report a skipped update or a loss far above its running mean. True: the weights went back to a checkpoint."""
    progress, options = trainer.progress, trainer.options
    mean, loss = progress.mean_loss, row["loss"]
    if progress.skipped:
        what = f"the gradient is {row['gradient']}" if math.isfinite(loss) else f"the loss is {loss}"
        say(f"step {progress.step}: {what}; skipped this update")
        return False
    if mean is not None and options.spike and loss > options.spike * mean:
        say(f"step {progress.step}: the loss is {loss:.3g}, its running mean {mean:.3g}")
        newest, _ = trainer.processes.same(checkpoint.newest(trainer.run.checkpoints))
        if options.roll_back and newest is not None:
            _roll_back(trainer, newest, say)
            return True
    progress.mean_loss = loss if mean is None else 0.98 * mean + 0.02 * loss
    return False


def _roll_back(trainer: Trainer, newest: Path, say: Say) -> None:
    before = trainer.progress
    if before.rolled >= trainer.options.bad_steps:
        raise InvalidInput(
            f"the loss jumped {before.rolled + 1} times after {newest}, the last time in batch {before.batch - 1} of "
            f"epoch {before.epoch}; lower the learning rate"
        )
    saving.restore(trainer, newest)
    now = trainer.progress
    now.batch, now.epoch, now.rolled = before.batch, before.epoch, before.rolled + 1  # skip the batches in between
    trainer.carried = {}  # computed with other weights
    if trainer.processes.first:
        trainer.run.forget_after(now.step)
        trainer.run.log({"step": now.step, "rolled_back_from": before.step})
    say(f"went back to the weights of step {now.step}; continuing with the next batch")


def _evaluate(trainer: Trainer, say: Say) -> None:
    progress, options = trainer.progress, trainer.options
    assert trainer.held_out is not None
    metrics = trainer.evaluate(trainer.held_out)
    progress.figures, progress.evaluated = metrics, progress.step
    if options.watch not in metrics:
        raise InvalidInput(f"there is no metric {options.watch!r} to watch; there are {', '.join(metrics)}")
    value = metrics[options.watch]
    better = progress.best is None or (value > progress.best if options.higher else value < progress.best)
    better = better and not math.isnan(value)
    progress.waited = 0 if better else progress.waited + 1
    if better:
        progress.best, progress.best_step = value, progress.step
    if trainer.processes.first:
        trainer.run.log({"step": progress.step, "held_out": metrics})
    say(f"step {progress.step}: " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    if better and options.patience:
        saving.save(trainer)


def _tidy(trainer: Trainer) -> None:
    """Delete old checkpoints, except the best."""
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
        # The whole model last: its presence marks the run as finished.
        for submodel, name in [*((path, path) for path in trainer.objective.results), ("", RESULT)]:
            target = trainer.run.folder / name
            try:
                _save(trainer, target, submodel, weights)
            except (OSError, SafetensorError) as error:
                raise InvalidInput(f"{target} could not be written: {error}; the checkpoints are complete") from error

        if trainer.model.adapter is not None:
            adapters.save(trainer.model, trainer.run.folder / ADAPTER)

    trainer.processes.together(write)
    return {**progress.figures, **_final_metrics(trainer, say)}


def _final_metrics(trainer: Trainer, say: Say) -> dict[str, float]:
    """Metrics that are computed only once, of the written model: on test data, or else on held-out data."""
    data = trainer.held_out if trainer.test is None else trainer.test
    if data is None or type(trainer.objective).final is Objective.final:
        return {}
    model = model_folder.load(trainer.run.folder / RESULT).to(trainer.processes.device)
    metrics = evaluate_final(model, data, trainer.objective, trainer.processes)
    if trainer.processes.first and metrics:
        split = "held_out" if trainer.test is None else "test"
        trainer.run.log({"step": trainer.progress.step, "result": {split: metrics}})
        say(f"final model, {split}: " + ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
    return metrics


def _save(trainer: Trainer, target: Path, submodel: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Write the model, or a model inside it, such as ELECTRA's discriminator for fine-tuning."""
    model = trainer.model.get_submodule(submodel)
    assert isinstance(model, Model)
    prefix = f"{submodel}." if submodel else ""
    tensors = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    model_folder.save(model, target, weights=tensors)
    if trainer.tokenizer is not None:
        trainer.tokenizer.save(target)


def _result(trainer: Trainer, say: Say) -> dict[str, torch.Tensor]:
    """The weights of the final model: the mean of the last checkpoints, the best one, or the last one.

    With `ema`, the running mean of the weights takes the place of the weights.
    """
    options, progress = trainer.options, trainer.progress
    if options.average > 1:
        paths = checkpoint.every(trainer.run.checkpoints)[: options.average]
        steps = ", ".join(str(int(path.name)) for path in reversed(paths))
        say(f"the final model is the mean of the checkpoints {steps}")
        return mean_of([path / saving.MODEL / model_folder.WEIGHTS for path in paths])
    best = trainer.run.checkpoint(progress.best_step)
    if options.patience and progress.best_step != progress.step and best.is_dir():
        say(f"the final model is the best checkpoint, of step {progress.best_step}")
        checkpoint.check(best)
        mean = best / saving.AVERAGE
        weights = checkpoint.read_tensors(mean if mean.is_file() else best / saving.MODEL / model_folder.WEIGHTS)
    else:
        means = trainer.average or {}
        weights = {name: gather_full(means.get(name, tensor).detach()).cpu() for name, tensor in unique(trainer.model)}
    return {name: weights[name].to(tensor.dtype) for name, tensor in unique(trainer.model)}


def mean_of(files: list[Path]) -> dict[str, torch.Tensor]:
    """The mean of the weights in several files, computed in float64; integers are those of the first file."""
    weights = [checkpoint.read_tensors(path) for path in files]
    return {
        name: torch.stack([tensors[name].double() for tensors in weights]).mean(0).to(first.dtype)
        if first.is_floating_point()
        else first
        for name, first in weights[0].items()
    }


def _due(every: int, step: int) -> bool:
    return bool(every) and step % every == 0


__all__ = ["mean_of", "train"]
