"""A linear layer that is quick for few rows too, as decoding needs it.

For a handful of rows, and for the output layer of a large vocabulary, BLAS on a CPU is up to three times faster when
the weight is the left factor: then its rows, not the few of the input, are what the threads share out. Alone and from
memory, weights gain by it up to 32 rows; in a whole model, 8 rows lost. The product is the same up to rounding.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from longspan.replay import deciding

FEW = 4  # rows up to which any weight goes left
WIDE, SOME = 4096, 64  # from this many outputs it does up to this many rows


def linear(
    x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None = None
) -> Float[Tensor, "*batch outputs"]:
    """x weightᵀ + bias."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not _few(x, weight):
        return functional.linear(x, weight, bias)
    rows = x.numel() // weight.shape[1]
    columns = x.reshape(rows, -1).t()
    out = weight @ columns if bias is None else torch.addmm(bias[:, None], weight, columns)
    return out.t().reshape(*x.shape[:-1], -1)


def _few(x: Tensor, weight: Tensor) -> bool:
    outputs, inputs = weight.shape
    if not inputs < x.numel() <= inputs * (SOME if outputs >= WIDE else FEW):
        return False
    # The first run of a reversible layer is the other exception: the second must repeat it to the bit.
    return x.is_cpu and not torch.is_autocast_enabled("cpu") and deciding.get() is None


class Linear(nn.Linear):
    """`nn.Linear`, quick for few rows."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


__all__ = ["Linear", "linear"]
