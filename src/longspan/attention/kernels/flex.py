"""FlexAttention for the mechanisms that are a mask on softmax attention: another way to the same output, for CUDA.

`use(model)` makes every such mechanism of a model go through torch's FlexAttention, compiled, wherever that can do what
is asked for; the rest (dropout on the weights, a bias, global tokens, decoding) stays on the mechanism's own path.
Which pairs are read is said here once more, place by place, as FlexAttention wants it; the tests hold that to the
oracle, and its output uncompiled. Elsewhere than on CUDA nothing changes: FlexAttention has no backward pass on CPUs.
"""

from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention, Extras
from longspan.attention.layouts.grid import place_in_blocks
from longspan.attention.mechanisms.axial import AxialAttention
from longspan.attention.mechanisms.bigbird import BigBirdAttention
from longspan.attention.mechanisms.image_local import ImageBlocks, ImageLocalAttention, LineBlocks
from longspan.attention.mechanisms.sparse import SparseAttention
from longspan.attention.mechanisms.window import WindowAttention

Reads = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of batch, head, query and key, all of them indices
LENGTHS = 8  # of a mechanism, whose masks are kept
_masks: WeakKeyDictionary[Attention, dict[Any, Any]] = WeakKeyDictionary()


def use(module: nn.Module, enabled: bool = True) -> list[str]:
    """Let the mechanisms of a module go through FlexAttention where they can, or no longer; the names of those."""
    found = [each for each in module.modules() if isinstance(each, Attention) and type(each).name in PATTERNS]
    for each in found:
        each.other_way = attend if enabled else None
    return [type(each).name for each in found]


def attend(mechanism: Attention, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor | None:
    """What `mechanism.attend` gives; None where FlexAttention cannot, or is not compiled for the device."""
    return through(_compiled(), mechanism, q, k, v, extras) if q.is_cuda else None


def through(call: Any, mechanism: Attention, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor | None:
    """What `mechanism.attend` gives, by `call`, which is FlexAttention, compiled or not; None where that cannot."""
    dropped = mechanism.training and mechanism.dropout > 0
    if dropped or extras.bias is not None or extras.streams or v.shape[-1] != q.shape[-1]:
        return None
    if extras.key_mask is not None:
        mask = _mask(mechanism, q, extras.key_mask)
    else:
        # What is read hangs on the length, the device, and BigBird's seed, which a checkpoint may bring in.
        key = (q.shape[2], q.device, *(buffer._version for buffer in mechanism.buffers()))
        known = _masks.setdefault(mechanism, {})
        if key not in known:
            if len(known) >= LENGTHS:
                known.clear()
            known[key] = _mask(mechanism, q, None)
        mask = known[key]
    return None if mask is None else call(q, k, v, block_mask=mask)


def _mask(mechanism: Attention, q: Tensor, keep: Tensor | None) -> Any:
    """The pairs that are read, in FlexAttention's blocks; None where it is more than a mask."""
    read, length = reads(mechanism, q.shape[2], keep, q.device), q.shape[2]
    if read is None:
        return None
    from torch.nn.attention.flex_attention import create_block_mask

    # One mask for all rows of a batch unless they differ by their padding, and one for all heads unless these differ.
    heads = q.shape[1] if _by_head(mechanism) else None
    return create_block_mask(read, None if keep is None else q.shape[0], heads, length, length, device=str(q.device))


def reads(mechanism: Attention, length: int, keep: Tensor | None, device: torch.device) -> Reads | None:
    """Which pairs a mechanism reads, time and padding included; None where it is more than a mask."""
    pattern = PATTERNS[type(mechanism).name](mechanism, length, keep, device)
    if pattern is None:
        return None

    def read(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        found = pattern(batch, head, query, key)
        if mechanism.causal:
            found = found & (key <= query)
        return found if keep is None else found & keep[batch, key]

    return read


@cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _by_head(mechanism: Attention) -> bool:
    if isinstance(mechanism, WindowAttention):
        return len(set(mechanism.dilations)) > 1
    return isinstance(mechanism, (SparseAttention, BigBirdAttention))


def _window(mechanism: WindowAttention, length: int, keep: Tensor | None, device: torch.device) -> Reads:
    window, dilations = mechanism.options.window, torch.tensor(mechanism.dilations, device=device)

    def read(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        apart, dilation = (query - key).abs(), dilations[head]
        return (apart <= window * dilation) & (apart % dilation == 0)

    return read


def _sparse(mechanism: SparseAttention, length: int, keep: Tensor | None, device: torch.device) -> Reads:
    stride, summary, window = mechanism.options.stride, mechanism.options.summary, mechanism.window
    columns = torch.tensor(mechanism.columns, device=device)
    kinds = [(group.local, group.distant) for group in mechanism.groups for _ in range(group.begin, group.end)]
    local, distant = torch.tensor(kinds, device=device).unbind(1)

    def strided(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (local[head] & (query - key < window)) | (distant[head] & ((query - key) % stride == 0))

    def fixed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        column = key % stride - columns[head]
        summarised = (column >= 0) & (column < summary)
        return (local[head] & (query // stride == key // stride)) | (distant[head] & summarised)

    return strided if mechanism.strided else fixed


def _image_local(
    mechanism: ImageLocalAttention, length: int, keep: Tensor | None, device: torch.device
) -> Reads | None:
    mechanism.check_length(length)
    if mechanism.options.ring:  # a key that is seen twice counts twice
        return None
    form = mechanism.form
    if isinstance(form, LineBlocks):

        def line(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            first = query // form.block * form.block
            return (key >= first - form.memory_size) & (key < first + form.block + form.behind)

        return line
    assert isinstance(form, ImageBlocks)
    row, column = place_in_blocks(torch.arange(length, device=device), form.height, form.width, form.block)
    (tall, broad), (above, beside) = form.block, form.flange
    top, left = row // tall * tall, column // broad * broad

    def image(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        in_rows = (row[key] >= top[query] - above) & (row[key] < top[query] + tall + above)
        in_columns = (column[key] >= left[query] - beside) & (column[key] < left[query] + broad + beside)
        return in_rows & in_columns

    return image


def _axial(mechanism: AxialAttention, length: int, keep: Tensor | None, device: torch.device) -> Reads:
    mechanism.axes_of(length)  # or it is refused
    stride, line = mechanism.stride, mechanism.line
    slab = length * stride if line is None else line * stride  # positions that hold whole lines

    def read(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query % stride == key % stride) & (query // slab == key // slab)

    return read


def _bigbird(mechanism: BigBirdAttention, length: int, keep: Tensor | None, device: torch.device) -> Reads | None:
    if mechanism.ported:  # a block that is drawn again counts again
        return None
    block, first = mechanism.options.block, 0 if mechanism.itc else min(length, mechanism.options.global_tokens)
    if first == length:
        return lambda batch, head, query, key: query >= 0
    table = mechanism.read_blocks(length - first, None if keep is None else keep[:, first:])  # batch or 1, as below
    one = table.shape[0] == 1

    def read(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        ahead = (query < first) | (key < first)
        row, column = (query - first).clamp_min(0) // block, (key - first).clamp_min(0) // block
        return ahead | table[batch * 0 if one else batch, head, row, column]

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
