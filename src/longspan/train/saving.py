"""Save a trainer to a checkpoint and restore it bit-exactly."""

import json
import shutil
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from longspan.errors import InvalidInput
from longspan.models import folder as model_folder
from longspan.parsing import read_json, refusing
from longspan.train import checkpoint
from longspan.train.loop import Trainer, TrainProgress
from longspan.train.sharding import gather_full, like, put, unique
from longspan.train.state_io import flatten_state, restore_state

PROGRESS, OPTIMIZER, MODEL, AVERAGE = "progress.json", "optimizer.safetensors", "model", "average.safetensors"


def random_file(rank: int) -> str:
    return f"{checkpoint.RANDOM}-{rank}.safetensors"


def carried_file(rank: int) -> str:
    return f"{checkpoint.CARRIED}-{rank}.safetensors"


def save(trainer: Trainer) -> Path:
    """Write the checkpoint of this step. All processes call it; the first one writes."""
    target = trainer.run.checkpoint(trainer.progress.step)
    trainer.check_weights()
    weights = {name: gather_full(tensor.detach()).cpu() for name, tensor in unique(trainer.model)}
    optimizer = _optimizer_state(trainer)
    average = None if trainer.average is None else {name: gather_full(mean) for name, mean in trainer.average.items()}
    states = trainer.processes.gather((checkpoint.random_state(), _carried(trainer)))

    def write() -> None:
        if not trainer.processes.first or _is_whole(target):
            return
        shutil.rmtree(target, ignore_errors=True)
        with checkpoint.writing(target) as part:
            model_folder.save(trainer.model, part / MODEL, weights=weights)
            if trainer.tokenizer is not None:
                trainer.tokenizer.save(part / MODEL)
            checkpoint.write_tensors(part / OPTIMIZER, optimizer)
            if average is not None:
                checkpoint.write_tensors(part / AVERAGE, average)
            shapes = []
            for rank, (random, (shape, tensors)) in enumerate(states):
                checkpoint.write_tensors(part / random_file(rank), random)
                shapes.append(shape)
                if tensors:
                    checkpoint.write_tensors(part / carried_file(rank), tensors)
            record = {
                **asdict(trainer.progress),
                "processes": trainer.processes.world,
                "data": trainer.data.fingerprint(),
                "carried": shapes,
            }
            (part / PROGRESS).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    trainer.processes.together(write)  # a full disk must stop all processes
    return target


def restore(trainer: Trainer, folder: Path, *, inexact: bool = False) -> None:
    """Restore a checkpoint. `inexact` allows what prevents a bit-exact continuation."""
    with refusing(folder):
        _restore(trainer, folder, inexact)


def _restore(trainer: Trainer, folder: Path, inexact: bool) -> None:
    record = _record(folder)
    _check_exact(trainer, folder, record, inexact)
    weights = checkpoint.read_tensors(folder / MODEL / model_folder.WEIGHTS)
    for name, tensor in unique(trainer.model):
        if name not in weights or weights[name].shape != tensor.shape:
            shape = "missing" if name not in weights else str(tuple(weights[name].shape))
            raise InvalidInput(f"{folder}: {name} is {shape} in the checkpoint and {tuple(tensor.shape)} in the model")
        put(tensor.data, weights[name])
    trainer.optimizer.state.clear()  # after a roll-back it is of a later step
    _restore_optimizer(trainer, checkpoint.read_tensors(folder / OPTIMIZER), folder)
    trainer.average = None
    if trainer.options.ema and (folder / AVERAGE).is_file():
        means = checkpoint.read_tensors(folder / AVERAGE)
        trainer.average = {name: like(means[name], tensor) for name, tensor in unique(trainer.model)}
    known = {item.name for item in fields(TrainProgress)}
    trainer.progress = TrainProgress(**{key: value for key, value in record.items() if key in known})
    trainer.carried = {}
    carried = folder / carried_file(trainer.processes.rank)
    if record["processes"] == trainer.processes.world and carried.is_file():
        trainer.carried = _read_carried(trainer, carried, record)
    state = folder / random_file(trainer.processes.rank)
    if state.is_file():
        checkpoint.restore_random_state(checkpoint.read_tensors(state))


def _is_whole(folder: Path) -> bool:
    """Whether this step is saved already and undamaged, as when a run is stopped right after saving."""
    try:
        checkpoint.check(folder)
    except InvalidInput:
        return False
    return True


def _carried(trainer: Trainer) -> tuple[Any, dict[str, Tensor]]:
    """The state that the model carries from the last batch in this process: its structure and its tensors."""
    tensors: dict[str, Tensor] = {}
    return flatten_state(trainer.carried, tensors), {name: tensor.cpu() for name, tensor in tensors.items()}


def _read_carried(trainer: Trainer, path: Path, record: dict[str, Any]) -> Any:
    tensors = checkpoint.read_tensors(path)
    on_device = {name: tensor.to(trainer.processes.device) for name, tensor in tensors.items()}
    return restore_state(record["carried"][trainer.processes.rank], on_device, str(path))


def _check_exact(trainer: Trainer, folder: Path, record: dict[str, Any], inexact: bool) -> None:
    wrong = []
    if record.get("data") != trainer.data.fingerprint():
        wrong.append(f"the data are {trainer.data.fingerprint()}, but were {record.get('data', 'not recorded')}")
    if record.get("processes") != trainer.processes.world:
        wrong.append(f"there are {trainer.processes.world} processes, but were {record.get('processes')}")
    needed = [random_file(rank) for rank in range(trainer.processes.world)]
    needed += [carried_file(rank) for rank, shape in enumerate(record["carried"]) if shape["table"]]
    wrong.extend(f"{name} is missing" for name in needed if not (folder / name).is_file())
    if wrong and not inexact:
        raise InvalidInput(
            f"{folder}: the run cannot be resumed bit-exactly: {'; '.join(wrong)}; "
            "to resume nevertheless, ask for an inexact resume (--inexact)"
        )


def _record(folder: Path) -> dict[str, Any]:
    path = folder / PROGRESS
    record = read_json(path)
    if not isinstance(record, dict) or not {"step", "processes", "data", "carried"} <= record.keys():
        raise InvalidInput(f"{path} is incomplete: it must say step, processes, data and carried")
    return record


def _names(trainer: Trainer) -> dict[int, str]:
    return {id(parameter): name for name, parameter in trainer.model.named_parameters()}


def _optimizer_state(trainer: Trainer) -> dict[str, Tensor]:
    tensors = checkpoint.optimizer_tensors(trainer.optimizer, _names(trainer))
    return {name: gather_full(tensor) for name, tensor in tensors.items()}


def _restore_optimizer(trainer: Trainer, tensors: dict[str, Tensor], source: Path) -> None:
    parameters = dict(trainer.model.named_parameters())
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition("/")
        if owner not in parameters:
            raise InvalidInput(f"{source} has optimizer state for {owner}, which this model does not train")
        parameter = parameters[owner]
        value = tensor.clone().to(parameter.device) if key == "step" else like(tensor, parameter)
        trainer.optimizer.state[parameter][key] = value


__all__ = ["AVERAGE", "MODEL", "restore", "save"]
