"""Read an adapter from its folder onto the model that it was trained on."""

from pathlib import Path

import torch

from longspan.errors import InvalidInput
from longspan.hub.changed_options import rebuild
from longspan.manifest import check_manifest
from longspan.models import adapters
from longspan.models.base import Model
from longspan.models.folder import read_weights
from longspan.parsing import read_json, refusing


def attach(model: Model, folder: Path) -> Model:
    """The model with the adapter of a folder, and with its heads.

    The model is changed in place, unless the adapter has other heads than it. The same adapter on other weights is an
    error: the checksum of the base is compared.
    """
    if not (folder / adapters.RECORD).is_file():
        raise InvalidInput(f"{folder} is no adapter: it has no {adapters.RECORD}; give a folder of `longspan adapt`")
    check_manifest(folder)
    record = read_json(folder / adapters.RECORD)
    if not isinstance(record, dict) or not {"kind", "options", "base", "model"} <= record.keys():
        raise InvalidInput(f"{folder / adapters.RECORD} is incomplete: it must say kind, options, base and model")
    if model.adapter is not None:
        raise InvalidInput(f"this {model.name} has an adapter already ({model.adapter.name}); detach it first")
    if record["model"] != model.name:
        raise InvalidInput(f"{folder} is an adapter of a {record['model']}, not of a {model.name}")
    weights = read_weights(folder / adapters.WEIGHTS)
    adapter = adapters.read(record, str(folder / adapters.RECORD))
    if record.get("tasks"):
        new = {str(head["task"]) for head in record["tasks"]}
        model = rebuild(model, {"tasks": record["tasks"]}, folder / adapters.RECORD, new_heads=new)[0]
    with refusing(folder), torch.random.fork_rng(devices=[]):
        adapter.attach(model)
    found = adapters.base_digest(model)
    if found != record["base"]:
        adapter.detach(model)
        raise InvalidInput(f"{folder} was trained on other weights than these; load it onto the model it was made for")
    _, wanted = adapter.small(model)
    if wanted.keys() != weights.keys() or any(wanted[name].shape != weights[name].shape for name in wanted):
        adapter.detach(model)
        raise InvalidInput(f"{folder / adapters.WEIGHTS} does not have the tensors that {adapters.RECORD} describes")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(weights[name])
    return model


__all__ = ["attach"]
