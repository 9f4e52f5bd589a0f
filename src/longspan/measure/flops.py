"""Multiplications and additions of the matrix products of a computation, counted while it runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

# torch counts the fused kernels of CUDA but not those of the CPU.
_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _pairs(query: Sequence[int], key: Sequence[int]) -> int:
    """Of all heads; a causal kernel skips half of them, but that is speed, not size."""
    batch, heads, queries, _ = query
    return batch * heads * queries * key[2]


def _read(queries: int, keys: int, causal: bool) -> float:
    """The share of the pairs that a kernel has to look at."""
    if not causal:
        return 1.0
    rising = min(queries, keys)
    return (rising * (rising + 1) / 2 + (queries - rising) * keys) / (queries * keys)


def _forward(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, out_shape: Any = None, **__: Any
) -> int:
    """q kᵀ and p v by their shapes."""
    return 2 * _pairs(query, key) * (query[3] + value[3])


def _forward_read(
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    dropout: float = 0.0,
    causal: bool = False,
    **beside: Any,
) -> int:
    return int(_forward(query, key, value) * _read(query[2], key[2], causal))


def _backward_read(
    towards: Sequence[int],
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    out: Any,
    sums: Any,
    dropout: float,
    causal: bool,
    **beside: Any,
) -> int:
    """The scores once more, and the gradients of the weights, v, q and k."""
    return int(2 * _pairs(query, key) * (3 * query[3] + 2 * value[3]) * _read(query[2], key[2], causal))


_SIZE: Mapping[Any, Any] = {_FORWARD: _forward}
_WORK: Mapping[Any, Any] = {_FORWARD: _forward_read, _BACKWARD: _backward_read}


def count_flops(run: Callable[[], Any]) -> int:
    """Multiplications and additions of all matrix products (and convolutions) in `run`, by the size of what enters."""
    return _count(run, _SIZE)


def count_work(run: Callable[[], Any]) -> int:
    """The same of what is done: the fused kernel's backward pass too, and only half of it where it is causal."""
    return _count(run, _WORK)


def _count(run: Callable[[], Any], kernels: Mapping[Any, Any]) -> int:
    with FlopCounterMode(display=False, custom_mapping=dict(kernels)) as counter:
        run()
    return int(counter.get_total_flops())


__all__ = ["count_flops", "count_work"]
