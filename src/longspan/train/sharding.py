"""Shard tensors over processes, and gather them (FSDP2)."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from longspan.models import folder as model_folder
from longspan.models.base import Model
from longspan.nn.block import Block
from longspan.nn.memory_layer import MemoryLayer


def shard(module: nn.Module) -> None:
    """Split the parameters over all processes: each block by itself, then the rest."""
    from torch.distributed.fsdp import fully_shard  # slow to import, and only for several processes

    for submodule in module.modules():
        if isinstance(submodule, (Block, MemoryLayer)):
            fully_shard(submodule)
    fully_shard(module)


def gather_full(tensor: Tensor) -> Tensor:
    """The whole tensor. If it is sharded, all processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_part(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def put(target: Tensor, full: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded."""
    if isinstance(target, DTensor):
        target.copy_(distribute_tensor(full.to(target.device, target.dtype), target.device_mesh, target.placements))
    else:
        target.copy_(full)


@torch.no_grad()
def full_copy(model: Model, instead: Mapping[str, Tensor] | None = None) -> Model:
    """An unsharded copy of a model, in every process; `instead` replaces weights by others, sharded in the same way."""
    with torch.random.fork_rng(devices=[]):  # initialisation must not change the state of the generators
        copy = type(model)(model.options)
    copy = copy.to(model.device, model.dtype)
    weights = {name: gather_full((instead or {}).get(name, tensor).detach()) for name, tensor in unique(model)}
    model_folder.fill(copy, weights, "the sharded model")
    return copy


def like(full: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor, sharded as a parameter is."""
    on_device = full.to(parameter.device)
    if isinstance(parameter, DTensor):
        return distribute_tensor(on_device, parameter.device_mesh, parameter.placements)
    return on_device.clone()


def unique(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and saved buffers; a shared one once, under its first name."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


__all__ = ["full_copy", "gather_full", "like", "local_part", "put", "shard", "unique"]
