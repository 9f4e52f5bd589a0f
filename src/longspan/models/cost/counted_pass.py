"""The cost of models that are not stacks of Transformer blocks, counted by a pass without numbers: shapes decide it."""

import copy
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from longspan.errors import InvalidInput
from longspan.models.base import Model
from longspan.models.cost.tally import Tally, read
from longspan.models.perceiver import Perceiver
from longspan.models.set_model import SetTransformer
from longspan.models.vision.resnet import ResNet


@read.register
def _(model: ResNet, length: int, tally: Tally) -> None:
    side = math.isqrt(length)
    if side * side != length:
        raise InvalidInput(f"the length is the number of pixels of a square image; {length} is not a square")
    count_pass(model, tally, torch.empty(1, model.options.channels, side, side, device="meta"))
    tally.notes.append(f"the length is the number of pixels, here {side} × {side}")


@read.register
def _(model: Perceiver, length: int, tally: Tally) -> None:
    elements = torch.empty(1, length, model.options.channels, device="meta")
    positions = torch.empty(1, length, len(model.shape), device="meta")
    count_pass(model, tally, elements, positions, method="encode")
    tally.notes.append("the length is the number of elements, such as pixels")


@read.register
def _(model: SetTransformer, length: int, tally: Tally) -> None:
    count_pass(model, tally, torch.empty(1, length, model.options.features, device="meta"))
    tally.notes.append("the length is the number of elements")


def count_pass(model: Model, tally: Tally, *inputs: Tensor, method: str = "forward") -> None:
    """Adds the operations of a forward pass over `inputs` on the meta device, and what it keeps for the backward."""
    blank = copy.deepcopy(model).to("meta").eval()  # dropout keeps masks, which are not counted
    weights = {id(tensor) for tensor in blank.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Any:
        if tensor.is_floating_point() and id(tensor) not in weights:
            kept[id(tensor.untyped_storage())] = tensor
        return tensor

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        getattr(blank, method)(*inputs)
    floats = sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in kept.values())
    tally.add("forward", counter.get_total_flops(), floats)


__all__ = ["count_pass"]
