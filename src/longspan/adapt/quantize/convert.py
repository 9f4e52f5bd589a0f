"""Quantise the weights of a model."""

from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from longspan.errors import InvalidInput, Unsupported
from longspan.models.base import Model
from longspan.models.quantized import candidates, other_layers, quantization, replace_layers
from longspan.nn.quantized import QuantizedLinear, check_scheme, unfit


@dataclass(frozen=True)
class Quantized:
    """A quantised model, what was replaced in it, and what kept its precision, with the reason."""

    model: Model
    replaced: list[str]
    kept: dict[str, str]
    kernel: str  # what computes the products of a few rows
    bits: str
    group: int


def quantize(model: Model, bits: str | int, *, group: int = 32) -> Quantized:
    """A copy of the model with lighter weights; the model itself stays unchanged.

    `bits` is 4, 8 (integers, with bfloat16 inputs of the products), "dynamic8" (integers, and inputs rounded to
    integers at each call) or "bf16". `group` is the number of weights that share a scale with 4 bits. Embeddings and
    norms keep their precision; an output layer tied to the embedding becomes a quantised copy of it.

    >>> light = quantize(model, 4).model
    """
    bits = str(bits)
    check_scheme(bits, group)
    known = quantization(model)
    if known is not None:
        raise InvalidInput(f"this model is quantised already (bits {known['bits']}): quantise the original instead")
    if model.device.type != "cpu":
        raise Unsupported(f"quantised products run on the CPU, and this model is on {model.device}; move it there")
    copy = deepcopy(model).eval().float()
    chosen, kept = {}, other_layers(copy)
    for name, layer in candidates(copy):
        weight = layer.weight
        assert isinstance(weight, Tensor)
        reason = unfit(weight.shape[0], weight.shape[1], bits, group)
        if reason is None:
            chosen[name] = layer
        else:
            kept[name] = reason
    if not chosen:
        raise Unsupported(f"this {model.name} has no layer that could be quantised: {_first(kept)}")
    with torch.no_grad():
        replace_layers(copy, chosen, partial(QuantizedLinear.of, bits=bits, group=group))
    kernel = next(layer.kernel for layer in copy.modules() if isinstance(layer, QuantizedLinear))
    return Quantized(copy, list(chosen), kept, kernel, bits, group)


def _first(kept: dict[str, str]) -> str:
    return next((f"{name}: {reason}" for name, reason in kept.items()), "it has no linear layers")


def weight_bytes(model: nn.Module) -> int:
    """The bytes of all parameters and buffers, shared ones once."""
    tensors = {id(x): x for x in (*model.parameters(), *model.buffers())}
    return sum(x.nbytes for x in tensors.values())


__all__ = ["Quantized", "quantize", "weight_bytes"]
