"""What a checkpoint of a run holds, and how a run goes on from it to the bit."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InvalidInput
from longspan.models import folder as model_folder
from longspan.train import checkpoint
from longspan.train.loop import Progress, Trainer
from longspan.train.sharding import like, put, unique, whole

PROGRESS, OPTIMIZER, MODEL, AVERAGE = "progress.json", "optimizer.safetensors", "model", "average.safetensors"


def random_file(rank: int) -> str:
    return f"random-{rank}.safetensors"


def save(trainer: Trainer) -> Path:
    """Writes the checkpoint of this step; all processes call it, and the first one names it when all is there."""
    run, processes = trainer.run, trainer.processes
    target = run.checkpoint(trainer.progress.step)
    weights = {name: whole(tensor.detach()).cpu() for name, tensor in unique(trainer.model)}
    held = _remembered(trainer)
    states = _gather(trainer, checkpoint.random_state())
    if processes.first and not target.exists():
        with checkpoint.writing(target) as part:
            model_folder.save(trainer.model, part / MODEL, tokenizer=trainer.tokenizer, weights=weights)
            checkpoint.write_tensors(part / OPTIMIZER, held)
            if trainer.average is not None:
                checkpoint.write_tensors(part / AVERAGE, trainer.average)
            for rank, state in enumerate(states):
                checkpoint.write_tensors(part / random_file(rank), state)
            record = {**asdict(trainer.progress), "processes": processes.world, "data": trainer.data.fingerprint()}
            (part / PROGRESS).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    processes.wait()
    return target


def restore(trainer: Trainer, folder: Path, *, inexact: bool = False) -> None:
    """Goes on where a checkpoint was written; `inexact` forgives what only exactness needs."""
    record = _record(folder)
    weights = checkpoint.read_tensors(folder / MODEL / model_folder.WEIGHTS)
    for name, tensor in unique(trainer.model):
        if name not in weights or weights[name].shape != tensor.shape:
            came = "none" if name not in weights else str(tuple(weights[name].shape))
            raise InvalidInput(f"{folder}: {name} is {came} in the checkpoint and {tuple(tensor.shape)} in the model")
        put(tensor.data, weights[name])
    _recall(trainer, checkpoint.read_tensors(folder / OPTIMIZER), folder)
    if (folder / AVERAGE).is_file():
        trainer.average = checkpoint.read_tensors(folder / AVERAGE)
    _check_exact(trainer, folder, record, inexact)
    known = {item.name for item in fields(Progress)}
    trainer.progress = Progress(**{key: value for key, value in record.items() if key in known})
    state = folder / random_file(trainer.processes.rank)
    if state.is_file():
        checkpoint.restore_random_state(checkpoint.read_tensors(state))


def _check_exact(trainer: Trainer, folder: Path, record: dict[str, Any], inexact: bool) -> None:
    wrong = []
    if record.get("data") != trainer.data.fingerprint():
        wrong.append(f"the data are {trainer.data.fingerprint()}, and were {record.get('data', 'not noted')}")
    if record.get("processes") != trainer.processes.world:
        wrong.append(f"there are {trainer.processes.world} processes, and were {record.get('processes')}")
    missing = folder / random_file(trainer.processes.rank)
    if not missing.is_file():
        wrong.append(f"{missing.name} is missing")
    if wrong and not inexact:
        raise InvalidInput(
            f"{folder}: the run cannot go on as it would have: {'; '.join(wrong)}; "
            "to go on all the same, ask for an inexact resume (--inexact)"
        )


def _record(folder: Path) -> dict[str, Any]:
    path = folder / PROGRESS
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None
    assert isinstance(record, dict)
    return record


def _names(trainer: Trainer) -> dict[int, str]:
    return {id(parameter): name for name, parameter in trainer.model.named_parameters()}


def _remembered(trainer: Trainer) -> dict[str, Tensor]:
    found = checkpoint.optimizer_tensors(trainer.optimizer, _names(trainer))
    return {name: whole(tensor) for name, tensor in found.items()}


def _recall(trainer: Trainer, tensors: dict[str, Tensor], source: Path) -> None:
    parameters = dict(trainer.model.named_parameters())
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition("/")
        if owner not in parameters:
            raise InvalidInput(f"{source} remembers {owner}, which this model does not train")
        placed = tensor.clone() if key == "step" else like(tensor, parameters[owner])
        trainer.optimizer.state[parameters[owner]][key] = placed


def _gather(trainer: Trainer, state: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The states of all processes, in the first."""
    if trainer.processes.world == 1:
        return [state]
    found: list[Any] = [None] * trainer.processes.world
    torch.distributed.all_gather_object(found, state)
    return found


__all__ = ["AVERAGE", "MODEL", "restore", "save"]
