"""Torch's FlexAttention for mechanisms that are softmax attention under a mask. CUDA only.

`use(model)` sends every such mechanism of a model through compiled FlexAttention where that supports the call. Dropout
on the weights, biases, global tokens and decoding keep the mechanism's own implementation. This file states each
mechanism's mask as a function of indices, as FlexAttention needs it; the tests compare masks and uncompiled outputs
with the definitions. On other devices nothing changes: FlexAttention has no backward pass on CPUs.
"""

from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention, Extras
from longspan.attention.layouts.grid import position_in_blocks
from longspan.attention.mechanisms.axial import AxialAttention
from longspan.attention.mechanisms.bigbird import BigBirdAttention
from longspan.attention.mechanisms.image_local import ImageBlocks, ImageLocalAttention, LineBlocks
from longspan.attention.mechanisms.sparse import SparseAttention
from longspan.attention.mechanisms.window import WindowAttention
from longspan.attention.parts.sliding_window import SlidingWindow

Reads = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # indices of batch, head, query and key -> boolean
LENGTHS = 8  # most lengths per mechanism whose masks are cached
_masks: WeakKeyDictionary[Attention, dict[Any, Any]] = WeakKeyDictionary()


def use(module: nn.Module, enabled: bool = True) -> list[str]:
    """Switch FlexAttention on or off for all mechanisms of a module that support it; returns their names."""
    mechanisms = [x for x in module.modules() if isinstance(x, Attention) and type(x).name in PATTERNS]
    for mechanism in mechanisms:
        mechanism.other_way = attend if enabled else None
    return [type(mechanism).name for mechanism in mechanisms]


def attend(mechanism: Attention, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor | None:
    """The output of `mechanism.attend`; None if FlexAttention does not support the call or the device."""
    return through(_compiled(), mechanism, q, k, v, extras) if q.is_cuda else None


def through(call: Any, mechanism: Attention, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor | None:
    """The output of `mechanism.attend` by `call` (FlexAttention, compiled or not); None if it is not supported."""
    dropped = mechanism.training and mechanism.dropout > 0
    if dropped or extras.bias is not None or extras.streams or v.shape[-1] != q.shape[-1] or mechanism.persistent:
        return None
    if extras.key_mask is not None:
        mask = _mask(mechanism, q, extras.key_mask)
    else:
        # The mask depends on the length, the device, and BigBird's seed, which a checkpoint may change.
        key = (q.shape[2], q.device, *(buffer._version for buffer in mechanism.buffers()))
        known = _masks.setdefault(mechanism, {})
        if key not in known:
            if len(known) >= LENGTHS:
                known.clear()
            known[key] = _mask(mechanism, q, None)
        mask = known[key]
    if mask is None:
        return None
    shared = {"enable_gqa": True} if k.shape[1] != q.shape[1] else {}
    out: Tensor = call(q, k, v, block_mask=mask, **shared)
    return out


def _mask(mechanism: Attention, q: Tensor, keep: Tensor | None) -> Any:
    """FlexAttention's block mask; None if the mechanism does more than masking."""
    read, length = reads(mechanism, q.shape[2], keep, q.device), q.shape[2]
    if read is None:
        return None
    from torch.nn.attention.flex_attention import create_block_mask

    # Sequences share one mask unless they have padding, and heads share one unless they differ.
    heads = q.shape[1] if _by_head(mechanism) else None
    return create_block_mask(read, None if keep is None else q.shape[0], heads, length, length, device=str(q.device))


def reads(mechanism: Attention, length: int, keep: Tensor | None, device: torch.device) -> Reads | None:
    """Which pairs a mechanism reads, causality and padding included; None if it does more than masking."""
    pattern = PATTERNS[type(mechanism).name](mechanism, length, keep, device)
    if pattern is None:
        return None

    def read(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        readable = pattern(batch, head, query, key)
        if mechanism.causal:
            readable = readable & (key <= query)
        return readable if keep is None else readable & keep[batch, key]

    return read


@cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _by_head(mechanism: Attention) -> bool:
    if isinstance(mechanism, SlidingWindow):
        return len(set(mechanism.dilations)) > 1
    return isinstance(mechanism, (SparseAttention, BigBirdAttention))


def _window(mechanism: SlidingWindow, length: int, keep: Tensor | None, device: torch.device) -> Reads | None:
    if isinstance(mechanism, WindowAttention) and not mechanism.plain:
        return None  # sinks, a scale of its own or a soft cap
    window, dilations = mechanism.options.window, torch.tensor(mechanism.dilations, device=device)

    def read(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance, dilation = (query - key).abs(), dilations[head]
        inside: Tensor = (distance <= window * dilation) & (distance % dilation == 0)
        return inside

    return read


def _sparse(mechanism: SparseAttention, length: int, keep: Tensor | None, device: torch.device) -> Reads:
    stride, summary, window = mechanism.options.stride, mechanism.options.summary, mechanism.window
    columns = torch.tensor(mechanism.columns, device=device)
    kinds = [(group.local, group.distant) for group in mechanism.groups for _ in range(group.begin, group.end)]
    local, distant = (torch.tensor(column, device=device) for column in zip(*kinds, strict=True))

    def strided(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        readable: Tensor = (local[head] & (query - key < window)) | (distant[head] & ((query - key) % stride == 0))
        return readable

    def fixed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        column = key % stride - columns[head]
        summarised = (column >= 0) & (column < summary)
        readable: Tensor = (local[head] & (query // stride == key // stride)) | (distant[head] & summarised)
        return readable

    return strided if mechanism.strided else fixed


def _image_local(
    mechanism: ImageLocalAttention, length: int, keep: Tensor | None, device: torch.device
) -> Reads | None:
    mechanism.check_length(length)
    if mechanism.options.ring:  # a key that is read twice counts twice
        return None
    form = mechanism.form
    if isinstance(form, LineBlocks):

        def line(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            first = query // form.block * form.block
            return (key >= first - form.memory_size) & (key < first + form.block + form.memory_after)

        return line
    assert isinstance(form, ImageBlocks)
    row, column = position_in_blocks(torch.arange(length, device=device), form.height, form.width, form.block)
    (tall, broad), (above, beside) = form.block, form.flange
    top, left = row // tall * tall, column // broad * broad

    def image(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        in_rows = (row[key] >= top[query] - above) & (row[key] < top[query] + tall + above)
        in_columns = (column[key] >= left[query] - beside) & (column[key] < left[query] + broad + beside)
        return in_rows & in_columns

    return image


def _axial(mechanism: AxialAttention, length: int, keep: Tensor | None, device: torch.device) -> Reads:
    mechanism.axes_of(length)  # refuses lengths that do not fit
    stride, line = mechanism.stride, mechanism.line
    slab = length * stride if line is None else line * stride  # positions of whole lines

    def read(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query % stride == key % stride) & (query // slab == key // slab)

    return read


def _bigbird(mechanism: BigBirdAttention, length: int, keep: Tensor | None, device: torch.device) -> Reads | None:
    if mechanism.ported:  # a block that is drawn twice counts twice
        return None
    block, first = mechanism.options.block, 0 if mechanism.itc else min(length, mechanism.options.global_tokens)
    if first == length:
        return lambda batch, head, query, key: query >= 0
    table = mechanism.read_blocks(length - first, None if keep is None else keep[:, first:])  # (batch or 1, …)
    shared = table.shape[0] == 1

    def read(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_global = (query < first) | (key < first)
        row, column = (query - first).clamp_min(0) // block, (key - first).clamp_min(0) // block
        return is_global | table[batch * 0 if shared else batch, head, row, column]

    return read


PATTERNS: dict[str, Callable[[Any, int, Tensor | None, torch.device], Reads | None]] = {
    "window": _window,
    "longformer": _window,  # without global tokens, which have projections of their own
    "sparse": _sparse,
    "image_local": _image_local,
    "axial": _axial,
    "bigbird": _bigbird,
}

__all__ = ["PATTERNS", "attend", "reads", "through", "use"]
