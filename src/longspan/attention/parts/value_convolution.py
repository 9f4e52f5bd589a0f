"""A short convolution over the values of each head: out_i = Σ_t filter_t · v_(i + t − reach) (Nyströmformer).

Depthwise convolutions are slow on CPUs, above all their backward pass. The product of a band matrix with each block of
positions and its surroundings takes a quarter of the time, although half of its multiplications are by zero.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, pad

from longspan.attention.devices import on_cpu
from longspan.attention.groups import members
from longspan.attention.layouts import ceil_div
from longspan.derivatives import Function, twice_differentiable
from longspan.shapes import Output, Values

BLOCK = 32  # positions of a product: fewer are slower, more multiply by more zeros
BLOCK_DTYPES = (torch.float32, torch.float64)
Filters = Float[Tensor, "heads kernel"]  # kernel: odd, centred on the position


def convolve(v: Values, filters: Filters) -> Output:
    """Each head's values convolved with its filter, with zeros past both ends.

    If there are more filters than heads of values, consecutive filters share one.
    """
    if _by_blocks(v.shape[2]) and on_cpu(v) and v.dtype in BLOCK_DTYPES:
        out: Tensor = _Filtered.apply(v, filters)
        return out
    return _plain(v, filters)


def _plain(v: Values, filters: Filters) -> Output:
    return conv2d(v, filters[:, None, :, None], padding=(filters.shape[1] // 2, 0), groups=v.shape[1])


def flops(length: int, kernel: int, width: int) -> int:
    """FLOPs of one head's forward pass."""
    return 2 * length * width * (BLOCK + kernel - 1 if _by_blocks(length) else kernel)


def _by_blocks(length: int) -> bool:
    return not torch.compiler.is_compiling() and length > BLOCK


def _recompute(ctx: Any, saved: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    v, filters = saved
    return _plain(v, filters), saved


class _Filtered(Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, filters: Tensor) -> Tensor:
        ctx.save_for_backward(v, filters)
        return _apply(v, filters)

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        v, filters = ctx.saved_tensors
        dv = None
        if ctx.needs_input_grad[0]:
            for heads in members(len(filters), v.shape[1]):
                part = _apply(g[:, heads], filters[heads].flip(1))
                dv = part if dv is None else dv.add_(part)
        return dv, _filter_gradient(g, v, filters.shape[1]) if ctx.needs_input_grad[1] else None


def _apply(x: Tensor, filters: Tensor) -> Tensor:
    bands, padded = _bands(filters.to(x.dtype)), _PaddedHead(x, filters.shape[1])
    out, share = x.new_empty(len(x), len(filters), *x.shape[2:]), len(filters) // x.shape[1]
    whole, rest = divmod(x.shape[2], BLOCK)
    border = whole * BLOCK
    for head, band in enumerate(bands):
        for values, target in zip(x[:, head // share], out[:, head]):
            windows = padded.windows(values)
            torch.bmm(band.expand(whole, -1, -1), windows[:whole], out=target[:border].unflatten(0, (whole, BLOCK)))
            if rest:
                torch.mm(band[:rest], windows[whole], out=target[border:])
    return out


def _filter_gradient(g: Tensor, v: Tensor, kernel: int) -> Tensor:
    """Sums of the diagonals of the products of each block's gradient with the values around it."""
    around, blocks = _PaddedHead(v, kernel), _PaddedHead(g, 1)
    total, share = v.new_zeros(g.shape[1], BLOCK, around.reads), g.shape[1] // v.shape[1]
    for head, products in enumerate(total):
        for g_head, values in zip(g[:, head], v[:, head // share]):
            # Grouped by index within the block, so that one product sums over all blocks.
            left, right = (x.transpose(0, 1).flatten(1) for x in (blocks.windows(g_head), around.windows(values)))
            products.addmm_(left, right.mT)
    skewed = pad(total.flatten(1), (0, BLOCK)).view(-1, BLOCK, around.reads + 1)
    return skewed[..., :kernel].sum(1)


def _bands(filters: Tensor) -> Tensor:
    """(heads, BLOCK, BLOCK + kernel − 1): the filter in each row, one further to the right than in the row above."""
    heads, kernel = filters.shape
    rows = filters.new_zeros(heads, BLOCK, BLOCK + kernel)
    rows[..., :kernel] = filters[:, None]
    return rows.flatten(1)[:, :-BLOCK].view(heads, BLOCK, BLOCK + kernel - 1)


class _PaddedHead:
    """A reused buffer for one head with zeros around it, of which overlapping blocks are views."""

    def __init__(self, x: Tensor, kernel: int) -> None:
        self.length, self.width, self.before = x.shape[2], x.shape[3], kernel // 2
        self.count, self.reads = ceil_div(self.length, BLOCK), BLOCK + kernel - 1
        self.rows = x.new_zeros(self.count * BLOCK + kernel - 1, self.width)

    def windows(self, x: Tensor) -> Tensor:
        """(blocks, BLOCK + kernel − 1, width), valid until the next call."""
        self.rows[self.before : self.before + self.length] = x
        strides = (BLOCK * self.width, self.width, 1)
        return self.rows.as_strided((self.count, self.reads, self.width), strides)


__all__ = ["convolve", "flops"]
