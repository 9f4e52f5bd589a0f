"""Products of a few rows with weights of 4 or 8 bits, by our own kernel in C (`native/packed_product.c`).

It rounds inputs to 8 bits in blocks of 32, each with a scale of its own, and reads each weight once. torch's kernels
compute in floating point instead; docs/quantize.md has both speeds.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, get_num_threads
from torch.nn import functional

from longspan.errors import InvalidInput
from longspan.native import library

BLOCK = 32
NAME = "longspan's kernel, compiled here"
LARGE = 2**22  # weights from which on waking further threads costs less than they save


@cache
def functions() -> ctypes.CDLL | None:
    """The compiled kernel, with its argument types; None if there is no compiler."""
    found = library("packed_product")
    if found is None:
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    rows: list[Any] = [pointer, number, number]  # inputs: data, rows, columns
    found.product4.argtypes = [*rows, pointer, pointer, pointer, number, number, pointer, ctypes.c_int]
    found.product8.argtypes = [*rows, pointer, number, pointer, number, pointer, ctypes.c_int]
    return found


def runs() -> bool:
    """Whether the kernel can be called: it exists, and no graph is being recorded, which could not hold it."""
    return not recording() and functions() is not None


def recording() -> bool:
    """Whether torch is recording a graph: by compile, export or jit.trace."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def product4(weight: Tensor, scale: Tensor, zero: Tensor, group: int) -> Callable[[Tensor], Tensor]:
    """x weightᵀ for rows x; the weight is packed as in `QuantizedLinear`, (outputs, inputs / 2) bytes."""
    (outputs, half), kernel = weight.shape, _loaded().product4
    inputs, count = 2 * half, threads(outputs * 2 * half)
    weight, scale, zero = weight.contiguous(), scale.contiguous(), zero.contiguous()

    def product(x: Tensor) -> Tensor:
        x, rows, out = _rows(x, outputs)
        held = weight.data_ptr(), scale.data_ptr(), zero.data_ptr()  # asked anew: memory may be exchanged (`.data = …`)
        _check(kernel(x.data_ptr(), rows, inputs, *held, outputs, group, out.data_ptr(), count()))
        return out

    return product


def product8(weight: Tensor, scale: Tensor) -> Callable[[Tensor], Tensor]:
    """x weightᵀ for rows x; the weight is (outputs, inputs) signed bytes with a scale for each output."""
    (outputs, inputs), kernel = weight.shape, _loaded().product8
    whole = functional.pad(weight, (0, -inputs % BLOCK)).contiguous()  # the last block is read as a whole
    stride, scale, count = whole.shape[1], scale.contiguous(), threads(outputs * inputs)

    def product(x: Tensor) -> Tensor:
        x, rows, out = _rows(x, outputs)
        held = whole.data_ptr(), stride, scale.data_ptr()
        _check(kernel(x.data_ptr(), rows, inputs, *held, outputs, out.data_ptr(), count()))
        return out

    return product


def threads(weights: int) -> Callable[[], int]:
    """How many threads multiply so many weights: torch's number, which may change, or one."""
    return get_num_threads if weights >= LARGE else lambda: 1


def _rows(x: Tensor, outputs: int) -> tuple[Tensor, int, Tensor]:
    """The inputs as the kernel reads them, the number of their rows, and room for the outputs."""
    x = x.float() if x.is_contiguous() else x.float().contiguous()
    rows = x.shape[0]
    return x, rows, torch.empty(rows, outputs)


def _loaded() -> ctypes.CDLL:
    found = functions()
    assert found is not None, "ask runs() first"
    return found


def _check(code: int) -> None:
    if code:
        raise InvalidInput("the product of a quantised layer found no memory for its inputs")


__all__ = ["NAME", "functions", "product4", "product8", "runs"]
