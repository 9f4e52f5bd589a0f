"""How much of a text a model carries on: the bytes that accuracy on recall is compared with.

The arena's models read in both directions. Their state is what the causal form of each layer keeps of a text for the
token after it, in 32-bit numbers, summed over layers: keys and values of all tokens (dense attention) or of those in
reach (windows), sums over outer products (kernels), hidden and cell states (recurrent networks, both directions). It
is measured by reading a text. Linformer and Nyströmformer have no causal form: they count as the keys and values that
are left after their compression.
"""

from collections.abc import Callable
from typing import Any

import torch

from longspan.arena.models.arena_encoder import ArenaEncoder
from longspan.arena.models.bidirectional import BidirectionalAttention
from longspan.attention.base import Attention
from longspan.errors import LongspanError
from longspan.nn.multihead import MultiHead
from longspan.nn.recurrent import Recurrent

NUMBER = 4  # bytes


def _linformer(mechanism: Any) -> int:
    shape = mechanism.shape
    return int(mechanism.options.rank * shape.heads * (shape.head_dim + shape.value_dim) * NUMBER)


def _nystrom(mechanism: Any) -> int:
    """Landmarks of keys, their values, and the values within the convolution."""
    shape, options = mechanism.shape, mechanism.options
    rows = options.landmarks * (shape.head_dim + shape.value_dim) + options.kernel * shape.value_dim
    return int(rows * shape.heads * NUMBER)


COMPRESSED: dict[str, Callable[[Any], int]] = {"linformer": _linformer, "nystrom": _nystrom}


def state_bytes(model: ArenaEncoder, length: int) -> int | None:
    """The bytes for one text of `length` tokens; None if a layer has neither a causal form nor a known compression."""
    recurrent = [module for module in model.modules() if isinstance(module, Recurrent)]
    if recurrent:
        return sum(layer.start(1).bytes for layer in recurrent)
    layers = [module.mechanism for module in model.modules() if isinstance(module, MultiHead)]
    sizes = [_of_layer(mechanism, length, model.options.width) for mechanism in layers]
    known = [size for size in sizes if size is not None]
    return sum(known) if known and len(known) == len(sizes) else None


def _of_layer(mechanism: Attention, length: int, width: int) -> int | None:
    if mechanism.name in COMPRESSED:
        return COMPRESSED[mechanism.name](mechanism)
    if isinstance(mechanism, BidirectionalAttention):
        halves = [_of_layer(half, length, width) for half in (mechanism.left, mechanism.right)]
        return None if None in halves else sum(size for size in halves if size is not None)
    if not (mechanism.supports.causal and mechanism.supports.streaming):
        return None
    if any(stream.kind != "hidden" for stream in mechanism.streams):
        return None
    shape = mechanism.shape
    try:
        with torch.no_grad():
            causal = type(mechanism)(shape, mechanism.options, causal=True).eval()
            q, k = (torch.zeros(1, shape.heads, length, shape.head_dim) for _ in range(2))
            v = torch.zeros(1, shape.heads, length, shape.value_dim)
            streams = {stream.name: torch.zeros(1, length, width) for stream in mechanism.streams}
            _, state = causal.extend(q, k, v, causal.start(1), streams=streams)
            return int(state.bytes)
    except LongspanError:  # these options have no causal form, such as a window over a grid
        return None


__all__ = ["state_bytes"]
