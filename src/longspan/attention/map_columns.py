"""Measures an attention map column by column: the output of the fast path when the values are parts of the identity."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longspan.errors import Unsupported

if TYPE_CHECKING:
    from longspan.attention.base import Attention


@torch.no_grad()
def map_columns(
    mechanism: "Attention", q: Tensor, k: Tensor, streams: Mapping[str, Tensor] | None, **masks: Any
) -> Iterator[tuple[int, Tensor]]:
    """(first key, weights of all queries on `value_dim` keys), for heads with one batch dimension.

    Memory is that of a forward pass: O(length · value_dim), never length².
    """
    if not mechanism.supports.map:
        raise Unsupported(
            f"{mechanism.name} transforms its values, so one (queries, keys) matrix cannot describe it; use oracle()"
        )
    zero = None
    if mechanism.persistent is not None:  # the output of values that are 0 is what persistent values add
        zero = _apply(mechanism, q, k, k.new_zeros(*k.shape[:3], mechanism.shape.value_dim), streams, masks)
    for begin in range(0, k.shape[2], mechanism.shape.value_dim):
        block = measure_columns(mechanism, q, k, begin, streams, **masks)
        yield begin, block if zero is None else block - zero[..., : block.shape[-1]]


@torch.no_grad()
def measure_columns(
    mechanism: "Attention", q: Tensor, k: Tensor, begin: int, streams: Mapping[str, Tensor] | None, **masks: Any
) -> Tensor:
    """The output on the identity of the `value_dim` keys from `begin` on, fewer at the end."""
    (batch, heads, keys), width = k.shape[:3], mechanism.shape.value_dim
    count = min(width, keys - begin)  # fused kernels need values as wide as keys, so columns past the end stay 0
    values = torch.zeros(keys, width, dtype=k.dtype, device=k.device)
    values[begin : begin + count].fill_diagonal_(1.0)
    return _apply(mechanism, q, k, values.expand(batch, heads, -1, -1), streams, masks)[..., :count]


def _apply(
    mechanism: "Attention",
    q: Tensor,
    k: Tensor,
    values: Tensor,
    streams: Mapping[str, Tensor] | None,
    masks: Mapping[str, Any],
) -> Tensor:
    """The output before dropout; streams that are projected like values are replaced by them."""
    like_values = {s.name: values for s in mechanism.streams if s.kind == "heads" and s.like == "v"}
    training = mechanism.training
    try:
        mechanism.train(False)
        out: Tensor = mechanism(q, k, values, streams={**(streams or {}), **like_values}, **masks)
    finally:
        mechanism.train(training)
    return out


__all__ = ["map_columns", "measure_columns"]
