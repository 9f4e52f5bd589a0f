"""The cost of networks with convolutions, counted by a pass without numbers: shapes alone decide it."""

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
from longspan.models.vision.resnet import ResNet


@read.register
def _(model: ResNet, length: int, tally: Tally) -> None:
    side = math.isqrt(length)
    if side * side != length:
        raise InvalidInput(f"the length is the number of pixels of a square image; {length} is not a square")
    count_pass(model, tally, torch.empty(1, model.options.channels, side, side, device="meta"))
    tally.notes.append(f"the length is the number of pixels, here {side} × {side}")


def count_pass(model: Model, tally: Tally, *inputs: Tensor) -> None:
    """Adds the operations of a forward pass over `inputs` on the meta device, and what it keeps for the backward."""
    blank = copy.deepcopy(model).to("meta").eval()  # dropout keeps masks, which are not counted
    weights = {id(tensor) for tensor in blank.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Any:
        if tensor.is_floating_point() and id(tensor) not in weights:
            kept[id(tensor.untyped_storage())] = tensor
        return tensor

    with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
        blank(*inputs)
    floats = sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in kept.values())
    tally.add("forward", counter.get_total_flops(), floats)


__all__ = ["count_pass"]
