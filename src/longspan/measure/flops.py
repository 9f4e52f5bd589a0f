"""Multiplications and additions of the matrix products of a computation, counted while it runs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

# torch counts the fused kernels of CUDA but not those of the CPU.
_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _pairs(query: Sequence[int], key: Sequence[int]) -> int:
    """Pairs of queries and keys in all heads; those that a causal kernel skips are counted too."""
    batch, heads, queries, _ = query
    return batch * heads * queries * key[2]


def _share_computed(queries: int, keys: int, causal: bool) -> float:
    """The share of the pairs that a kernel computes."""
    if not causal:
        return 1.0
    rising = min(queries, keys)
    return (rising * (rising + 1) / 2 + (queries - rising) * keys) / (queries * keys)


def _forward(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, out_shape: Any = None, **__: Any
) -> int:
    """FLOPs of q kᵀ and p v, from their shapes."""
    return 2 * _pairs(query, key) * (query[3] + value[3])


def _forward_work(
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    dropout: float = 0.0,
    causal: bool = False,
    **rest: Any,
) -> int:
    return int(_forward(query, key, value) * _share_computed(query[2], key[2], causal))


def _backward_work(
    grad: Sequence[int],
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    out: Any,
    sums: Any,
    dropout: float,
    causal: bool,
    **rest: Any,
) -> int:
    """FLOPs of recomputing the scores, and of the gradients of the weights, v, q and k."""
    return int(2 * _pairs(query, key) * (3 * query[3] + 2 * value[3]) * _share_computed(query[2], key[2], causal))


_SIZE: Mapping[Any, Any] = {_FORWARD: _forward}
_WORK: Mapping[Any, Any] = {_FORWARD: _forward_work, _BACKWARD: _backward_work}


def count_flops(run: Callable[[], Any]) -> int:
    """Multiplications and additions of all matrix products and convolutions in `run`, by the sizes of their inputs."""
    return _count(run, _SIZE)


def count_work(run: Callable[[], Any]) -> int:
    """The same for what is really computed: with the fused backward pass, and half of it if causal."""
    return _count(run, _WORK)


def _count(run: Callable[[], Any], kernels: Mapping[Any, Any]) -> int:
    with FlopCounterMode(display=False, custom_mapping=dict(kernels)) as counter:
        run()
    return int(counter.get_total_flops())


__all__ = ["count_flops", "count_work"]
