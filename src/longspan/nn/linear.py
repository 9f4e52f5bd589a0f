"""A linear layer that is quick for few rows too, as decoding needs it.

For one row BLAS on a CPU uses one thread, and for a few it shares out the rows, of which there are too few: weights are
read from memory at half the rate that it gives. So the weight goes left and in slices, one for each thread: then its
rows are what the threads share out. The product is the same up to rounding, and the weight is read where it lies.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from longspan.recompute import deciding

FEW = 64  # rows up to which slices gain
LEAST = 2**17  # numbers in a weight from which on they do: a smaller one is read faster than it is shared out


def linear(
    x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None = None
) -> Float[Tensor, "*batch outputs"]:
    """x weightᵀ + bias."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not _few(x, weight):
        return functional.linear(x, weight, bias)
    outputs, inputs = weight.shape
    slices, rows = _slices(outputs, torch.get_num_threads()), x.numel() // inputs
    # The strides are given, since BLAS goes by them and is four times slower for a single column that looks like a row.
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
    # The first run of a reversible layer is an exception: the second must repeat it to the bit.
    return deciding.get() is None and not torch.is_autocast_enabled("cpu")


PLAIN = (Tensor, nn.Parameter)  # what is more than these (quantised, sharded) knows best how it is multiplied
WHOLE = (torch.float32, torch.float64)


@lru_cache(maxsize=1024)
def _slices(outputs: int, threads: int) -> int:
    return next(count for count in range(max(threads, 1), 0, -1) if outputs % count == 0)


class Linear(nn.Linear):
    """`nn.Linear`, quick for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@torch.no_grad()
def fuse_storage(layers: Sequence[nn.Module]) -> None:
    """Moves the weights of layers that read one input one behind the other in memory, so that `together` finds them."""
    for name in ("weight", "bias"):
        parts = [getattr(layer, name) for layer in layers]
        if all(part is not None for part in parts):
            pieces = torch.cat([part.data for part in parts]).split([len(part) for part in parts])
            for part, piece in zip(parts, pieces):
                part.data = piece


def bring_together(layers: Sequence[nn.Module]) -> None:
    """Lays layers together again, where nothing but their place in memory stands against it."""
    if together(layers) is not None or any(_changed(layer) for layer in layers):
        return
    parts = [part for layer in layers for part in layer.parameters()]
    alike = {(part.dtype, part.device) for part in parts}
    if len(alike) > 1 or any(type(part) not in PLAIN or part.is_meta for part in parts):
        return
    with torch.inference_mode(False):  # what is made in inference mode could not be trained afterwards
        fuse_storage(layers)


def together(layers: Sequence[nn.Module]) -> tuple[Tensor, Tensor | None] | None:
    """The weights and the biases of all layers as one matrix and one vector: views, so that whatever is done to a layer
    is seen at once. None where they do not lie together any more, or where a layer is not as it was: replaced,
    parametrised, hooked.
    """
    owned = []
    for layer in layers:
        if _changed(layer):
            return None
        owned.append(layer._parameters)
    weight = _spanning([own.get("weight") for own in owned])
    biases = [own.get("bias") for own in owned]
    if weight is None or all(bias is None for bias in biases):
        return None if weight is None else (weight, None)
    bias = _spanning(biases)
    return None if bias is None else (weight, bias)


def _changed(layer: nn.Module) -> bool:
    """Whether a layer may do more than multiply."""
    hooked = bool(layer._forward_hooks or layer._forward_pre_hooks)
    return type(layer) is not Linear or hooked or "forward" in vars(layer)


def _spanning(parts: Sequence[Tensor | None]) -> Tensor | None:
    """One tensor over parts that follow on each other in memory; they are of one type, as layers of one module are."""
    first = parts[0]
    if first is None or type(first) not in PLAIN:
        return None
    begin, size, length = first.data_ptr(), first.element_size(), 0
    place = begin
    for part in parts:
        if part is None or type(part) not in PLAIN or part.data_ptr() != place or not part.is_contiguous():
            return None
        place += part.numel() * size
        length += len(part)
    if first.storage_offset() * size + place - begin > first.untyped_storage().nbytes():
        return None  # neighbours by chance, in two storages
    return first.as_strided((length, *first.shape[1:]), first.stride())


__all__ = ["Linear", "bring_together", "fuse_storage", "linear", "together"]
