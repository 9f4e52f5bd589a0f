"""Tensors that are split over the processes, whole and back (FSDP2)."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from longspan.models import folder as model_folder
from longspan.models.base import Model
from longspan.nn.block import Block
from longspan.nn.memory_layer import MemoryLayer


def shard(module: nn.Module) -> None:
    """Splits the parameters of each block, and of what stands around them, over all processes."""
    from torch.distributed.fsdp import fully_shard  # needs a process group to be of any use

    for part in module.modules():
        if isinstance(part, (Block, MemoryLayer)):
            fully_shard(part)
    fully_shard(module)


def gather_full(tensor: Tensor) -> Tensor:
    """All of a tensor; where it is split, every process must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def put(target: Tensor, full: Tensor) -> None:
    """Copies a whole tensor into one that may be split."""
    if isinstance(target, DTensor):
        target.copy_(distribute_tensor(full.to(target.device, target.dtype), target.device_mesh, target.placements))
    else:
        target.copy_(full)


@torch.no_grad()
def full_copy(model: Model, instead: Mapping[str, Tensor] | None = None) -> Model:
    """A model that is split, whole in every process, or with other weights that are split in the same way."""
    with torch.random.fork_rng(devices=[]):  # what is drawn here is written over, and must not be missed elsewhere
        made = type(model)(model.options)
    made = made.to(model.device, model.dtype)
    own = {name: gather_full((instead or {}).get(name, tensor).detach()) for name, tensor in unique(model)}
    model_folder.fill(made, own, "the split model")
    return made


def like(full: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor split as a parameter is."""
    placed = full.to(parameter.device)
    if isinstance(parameter, DTensor):
        return distribute_tensor(placed, parameter.device_mesh, parameter.placements)
    return placed.clone()


def unique(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and saved buffers, each storage under the first of its names."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


__all__ = ["full_copy", "gather_full", "like", "part", "put", "shard", "unique"]
