"""A linear layer that is also fast for few rows, as in decoding.

BLAS on a CPU uses one thread for one row and splits a few rows among threads, which are too few: it then reads the
weight at half the memory bandwidth. So the weight is the left operand, in one slice per thread, and the threads share
its rows. The product is the same up to rounding, and the weight is not copied.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from longspan.recompute import deciding

FEW = 64  # slices are faster up to this many rows
LEAST = 2**17  # and from this many elements of the weight


def linear(
    x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None = None
) -> Float[Tensor, "*batch outputs"]:
    """x weightᵀ + bias."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not _few(x, weight):
        return functional.linear(x, weight, bias)
    outputs, inputs = weight.shape
    slices, rows = _slices(outputs, torch.get_num_threads()), x.numel() // inputs
    # Explicit strides: BLAS is four times slower for a single column that looks like a row.
    columns = x.contiguous().as_strided((slices, inputs, rows), (0, 1, inputs))
    out = torch.bmm(weight.view(slices, -1, inputs), columns)
    out = (out if rows == 1 else out.view(outputs, rows).t()).reshape(*x.shape[:-1], outputs)
    return out if bias is None else out.add_(bias)


def _few(x: Tensor, weight: Tensor) -> bool:
    if not 0 < x.numel() <= FEW * weight.shape[1] or weight.numel() < LEAST or type(weight) not in PLAIN:
        return False
    kind = x.dtype
    if not x.is_cpu or kind != weight.dtype or kind not in WHOLE or not weight.is_contiguous():
        return False
    # Not in the first run of a reversible layer: the second must repeat it bit by bit.
    return deciding.get() is None and not torch.is_autocast_enabled("cpu")


PLAIN = (Tensor, nn.Parameter)  # other classes (quantised, sharded) have products of their own
WHOLE = (torch.float32, torch.float64)


@lru_cache(maxsize=1024)
def _slices(outputs: int, threads: int) -> int:
    return next(count for count in range(max(threads, 1), 0, -1) if outputs % count == 0)


class Linear(nn.Linear):
    """`nn.Linear`, fast for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@torch.no_grad()
def fuse_storage(layers: Sequence[nn.Module]) -> None:
    """Moves the weights of layers with a common input next to each other in memory, as `fused_view` needs them."""
    for name in ("weight", "bias"):
        parameters = [getattr(layer, name) for layer in layers]
        if all(parameter is not None for parameter in parameters):
            pieces = torch.cat([parameter.data for parameter in parameters]).split([len(row) for row in parameters])
            for parameter, piece in zip(parameters, pieces):
                parameter.data = piece


def ensure_fused(layers: Sequence[nn.Module]) -> None:
    """Fuses the storage again if only the memory addresses prevent `fused_view`."""
    if fused_view(layers) is not None or any(_changed(layer) for layer in layers):
        return
    weights = [weight for layer in layers for weight in layer.parameters()]
    kinds = {(weight.dtype, weight.device) for weight in weights}
    if len(kinds) > 1 or any(type(weight) not in PLAIN or weight.is_meta for weight in weights):
        return
    with torch.inference_mode(False):  # tensors made in inference mode cannot be trained
        fuse_storage(layers)


def fused_view(layers: Sequence[nn.Module]) -> tuple[Tensor, Tensor | None] | None:
    """The weights and the biases of all layers as one matrix and one vector.

    They are views, so any change of a layer shows at once. None if they are not adjacent in memory any more, or if a
    layer was replaced, parametrised or hooked.
    """
    parameters = []
    for layer in layers:
        if _changed(layer):
            return None
        parameters.append(layer._parameters)
    weight = _spanning([by_name.get("weight") for by_name in parameters])
    biases = [by_name.get("bias") for by_name in parameters]
    if weight is None or all(bias is None for bias in biases):
        return None if weight is None else (weight, None)
    bias = _spanning(biases)
    return None if bias is None else (weight, bias)


def _changed(layer: nn.Module) -> bool:
    """Whether a layer may do more than a matrix product."""
    hooked = bool(layer._forward_hooks or layer._forward_pre_hooks)
    return type(layer) is not Linear or hooked or "forward" in vars(layer)


def _spanning(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """One view of tensors that are adjacent in memory; they have one type, as layers of one module do."""
    first = tensors[0]
    if first is None or type(first) not in PLAIN:
        return None
    begin, size, length = first.data_ptr(), first.element_size(), 0
    address = begin
    for tensor in tensors:
        if tensor is None or type(tensor) not in PLAIN or tensor.data_ptr() != address or not tensor.is_contiguous():
            return None
        address += tensor.numel() * size
        length += len(tensor)
    if first.storage_offset() * size + address - begin > first.untyped_storage().nbytes():
        return None  # adjacent by chance, in different storages
    return first.as_strided((length, *first.shape[1:]), first.stride())


__all__ = ["Linear", "ensure_fused", "fuse_storage", "fused_view", "linear"]
