"""Memory-compressed attention: a strided convolution shortens keys and values (T-DMCA).

Liu et al. 2018 ("Generating Wikipedia by Summarizing Long Sequences", section 4.2.3) alternate two kinds of layers:
`local`, attention within blocks, and `memory`, where a convolution with kernel = stride shortens the projected keys and
values but not the queries. Slot j covers the positions stride·j to stride·(j+1) - 1; when causal, a row may read it if
all of them precede the row.

Padding: masked positions are 0 in the convolution, and a slot may be read if any of its positions may. So neither the
content nor the amount of padding changes a slot.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, linear, pad

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable, share_heads
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Dense, Layout, Stairs, Tiles, ceil_div, first_rows
from longspan.attention.layouts.base import pad_rows
from longspan.attention.state import Rows, State, append_mask
from longspan.config import option
from longspan.errors import InvalidInput
from longspan.shapes import Defined, Keys, Output, Queries, Values


@dataclass(frozen=True)
class LocalState(State):
    k: Rows  # of the block that is not full yet
    v: Rows
    seen: Rows | None  # which of them may be read; None if all may


@dataclass(frozen=True)
class CompressedState(State):
    k: Rows  # position 0 if `first_slot`, and the finished slots
    v: Rows
    seen: Rows | None  # which of them may be read; None if all may
    pending: LocalState  # the positions since the last finished slot, not yet convolved
    length: int


class MemoryCompressedAttention(Attention):
    name = "memory_compressed"
    paper = "Liu et al. 2018"
    survey_class = ("FP", "M")
    order = "n²/stride"
    exponent = 2.0
    supports = Supports(causal=True, streaming=True, dropout=True, grouped=True, map=False)  # it mixes channels
    key_weights = True  # the convolution, over the channels of all key heads

    limited = ("stride",)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        layer: str = option(
            "memory",
            "memory: reads all compressed keys; local: reads its own block only, order n·block",
            choices=("memory", "local"),
        )
        stride: int = option(3, "positions that become one slot (layer memory)", low=1)
        inclusive: bool = option(False, "whether a row may also read the slot that ends at its own position")
        first_slot: bool = option(
            True,
            "causal: whether position 0 is also a slot by itself, so that the first rows have something to read",
            formerly="first",
        )
        block: int = option(256, "positions of a block (layer local)", low=1)

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        if self.options.layer == "local":
            self.order, self.exponent, self.key_weights = "n·block", 1.0, False
            self.supports = replace(type(self).supports, map=True)
        else:
            shape.check_room("stride", self.options.stride)
            self.compress_keys = KeyCompression(shape.key_heads * shape.head_dim, self.options.stride)
            self.compress_values = KeyCompression(shape.key_heads * shape.value_dim, self.options.stride)
        self.first = self.causal and self.options.first_slot

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Defined:
        length, stride = q.shape[2], self.options.stride
        position = torch.arange(length, device=q.device)
        if self.options.layer == "local":
            own_block = position // self.options.block == (position // self.options.block)[:, None]
            keep = own_block & readable(length, length, self.causal, extras.key_mask, q.device)
        else:
            k = self._slots_by_definition(self.compress_keys, k, extras.key_mask)
            slots = k.shape[2] - self.first
            last = stride * torch.arange(1, slots + 1, device=q.device) - 1  # position of each slot
            if not self.causal:
                in_sight = torch.ones(length, slots, dtype=torch.bool, device=q.device)
            elif self.options.inclusive:
                in_sight = last <= position[:, None]
            else:
                in_sight = last < position[:, None]
            in_sight = pad(in_sight, (int(self.first), 0), value=True)
            keep = in_sight & self._readable_by_definition(extras.key_mask, slots, q)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / self.shape.head_dim**0.5
        return masked_softmax(scores, keep)

    def apply_weights(self, weights: Tensor, v: Values, extras: Extras) -> Output:
        if self.options.layer == "memory":
            self._check_width(v)
            v = self._slots_by_definition(self.compress_values, v, extras.key_mask)
        return weights @ v

    def _slots_by_definition(self, compression: "KeyCompression", x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Position 0 if it is a slot, and the convolved slots: (batch, heads, slots, head_dim)."""
        stride, heads = self.options.stride, self.shape.key_heads
        x = x[:, :: self.shape.group]  # of the key heads, repeated again below
        if key_mask is not None:
            x = x.masked_fill(~key_mask[:, None, :, None], 0.0)
        missing = 0 if self.causal else -x.shape[2] % stride  # if causal, no row may read a slot that is not full
        channels = pad(x, (0, 0, 0, missing)).transpose(1, 2).flatten(2).mT  # batch, channels, length
        if channels.shape[2] < stride:
            slots = channels[:, :, :0]
        else:
            slots = conv1d(channels, compression.weight.transpose(1, 2), compression.bias, stride=stride)
        slots = slots.unflatten(1, (heads, -1)).mT
        slots = torch.cat([x[:, :, :1], slots], dim=2) if self.first else slots
        return share_heads(slots, self.shape.heads)

    def _readable_by_definition(self, key_mask: Tensor | None, slots: int, q: Tensor) -> Tensor:
        """(batch or 1, 1, 1, slots)"""
        stride = self.options.stride
        if key_mask is None:
            return torch.ones(1, 1, 1, int(self.first) + slots, dtype=torch.bool, device=q.device)
        columns = [key_mask[:, j * stride : (j + 1) * stride].any(dim=1) for j in range(slots)]
        columns = [key_mask[:, 0], *columns] if self.first else columns
        return torch.stack(columns, dim=1)[:, None, None] if columns else key_mask[:, None, None, :0]

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        if self.options.layer == "local":
            return self._joint(q, self._own_block, k, v, extras.key_mask)
        self._check_width(v)
        slots = self._slots(q.shape[2])
        first = (k[:, :, :1], v[:, :, :1]) if self.first else None
        keys, values, keep = self._compress(k, v, extras.key_mask, slots, first)
        return self._read(q, keys, values, keep)

    @property
    def shortest_exported(self) -> int:
        return 1 if self.options.layer == "local" else 2 * self.options.stride + 1

    def _slots(self, length: int) -> int:
        """How many slots the rows of a text of this length read."""
        if not self.causal:
            return ceil_div(length, self.options.stride)
        return (length - 1 + self.options.inclusive) // self.options.stride

    def _compress(
        self, k: Tensor, v: Tensor, keep: Tensor | None, slots: int, first: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The keys and values of the first `slots` slots, after `first` if given, and which may be read."""
        if keep is not None:
            hidden = ~keep[:, None, :, None]
            k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
            positions = self._whole(keep[:, None, :, None], slots).unflatten(2, (slots, self.options.stride))
            keep_slots = positions.any(dim=3)[:, 0, :, 0]
            keep = torch.cat([keep[:, :1], keep_slots], dim=1) if first else keep_slots
        keys = self.compress_keys(self._whole(k, slots))
        values = self.compress_values(self._whole(v, slots))
        if first:
            keys, values = (torch.cat(pair, dim=2) for pair in zip(first, (keys, values)))
        return keys, values, keep

    def _whole(self, x: Tensor, slots: int) -> Tensor:
        """The positions of the first `slots` slots, padded with zeros if the last slot is not full."""
        wanted = slots * self.options.stride
        if self.causal:
            return first_rows(x, wanted)
        return pad_rows(x, 0, wanted - x.shape[2])

    def _read(self, q: Tensor, keys: Tensor, values: Tensor, keep: Tensor | None, past: int = 0) -> Tensor:
        """The rows from position `past` on, over all slots."""
        return self._joint(q, self._stairs(past) if self.causal else Dense(), keys, values, keep)

    def _joint(self, q: Tensor, layout: Layout, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        return joint(q, [KeySource(layout, k, v, keep)], scale=self._scale, dropout=self._dropout)

    def _stairs(self, past: int) -> Stairs:
        return Stairs(self.options.stride, past + self.options.inclusive, int(self.first))

    @property
    def _own_block(self) -> Tiles:
        return Tiles(self.options.block, causal=self.causal)

    @property
    def _scale(self) -> float:
        return float(self.shape.head_dim**-0.5)

    @property
    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def _check_width(self, v: Tensor) -> None:
        if v.shape[-1] != self.shape.value_dim:
            raise InvalidInput(
                f"v must be as wide as value_dim {self.shape.value_dim} to be compressed, not {v.shape[-1]}"
            )

    def cost(self, queries: int, keys: int) -> Cost:
        heads, head_dim, stride = self.shape.heads, self.shape.fused_width, self.options.stride
        key_heads = self.shape.key_heads
        widths = (key_heads * self.shape.head_dim, key_heads * self.shape.value_dim)
        kept = heads * queries * (head_dim + 1)  # the output and the log-sum-exp
        if self.options.layer == "local":
            return Cost(4 * head_dim * self._own_block.pairs(heads, queries, keys), kept)
        slots, width = self._slots(keys), key_heads * head_dim
        read = slots + self.first
        pairs = self._stairs(0).pairs(heads, queries, read) if self.causal else Dense().pairs(heads, queries, read)
        kept += 2 * read * width
        if key_heads > 1:
            kept += slots * stride * sum(widths)  # the convolution's input, with the channels of all heads concatenated
        return Cost(4 * head_dim * pairs + 2 * slots * stride * sum(x * x for x in widths), kept)

    # Decoding

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> LocalState | CompressedState:
        self._refuse_streaming()
        nothing = LocalState(Rows.empty(batch), Rows.empty(batch), None)
        if self.options.layer == "local":
            return nothing
        return CompressedState(Rows.empty(batch), Rows.empty(batch), None, nothing, 0)

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: Any, extras: Extras) -> tuple[Output, State]:
        if self.options.layer == "local":
            return self._decode_local(q, k, v, state, extras)
        return self._decode_memory(q, k, v, state, extras)

    def _decode_local(
        self, q: Tensor, k: Tensor, v: Tensor, state: LocalState, extras: Extras
    ) -> tuple[Tensor, LocalState]:
        block, count = self.options.block, q.shape[2]
        near = min(count, block - len(state.k))  # rows that still belong to the unfinished block
        mask = None if extras.key_mask is None else extras.key_mask[:, :near]
        begun = _append(state, k[:, :, :near], v[:, :, :near], mask)
        out = self._joint(q[:, :, :near], Dense(causal=True), begun.k.value, begun.v.value, _seen(begun))
        if near < count:
            mask = None if extras.key_mask is None else extras.key_mask[:, near:]
            further = self.attend(q[:, :, near:], k[:, :, near:], v[:, :, near:], Extras(mask))
            out = torch.cat([out, further], dim=2)
        if len(begun.k) < block:
            return out, begun
        return out, _only(k, v, extras.key_mask, (count - near) % block)

    def _decode_memory(
        self, q: Tensor, k: Tensor, v: Tensor, state: CompressedState, extras: Extras
    ) -> tuple[Tensor, CompressedState]:
        self._check_width(v)
        first = (k[:, :, :1], v[:, :, :1]) if self.first and not state.length else None
        pending = _append(state.pending, k, v, extras.key_mask)
        waiting, keep = len(pending.k), _seen(pending)
        slots = waiting // self.options.stride
        keys, values, seen = state.k, state.v, state.seen
        if slots or first:
            new = self._compress(pending.k.value, pending.v.value, keep, slots, first)
            seen = append_mask(seen, len(keys), new[2], new[0])
            keys, values = keys.append(new[0]), values.append(new[1])
        if slots:
            pending = _only(pending.k.value, pending.v.value, keep, waiting % self.options.stride)
        after = CompressedState(keys, values, seen, pending, state.length + q.shape[2])
        if not len(keys):  # no slot is finished yet
            return q.new_zeros(*q.shape[:3], v.shape[3]), after
        return self._read(q, keys.value, values.value, _seen(after), state.length), after


class KeyCompression(nn.Module):
    """A convolution over all channels with kernel = stride: a linear layer on `stride` concatenated positions.

    The weight is stored as for that layer, (out, offset, in); `weight.transpose(1, 2)` is that of `nn.Conv1d`.
    """

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(width, stride, width))
        self.bias = nn.Parameter(torch.empty(width))
        bound = (stride * width) ** -0.5  # as nn.Conv1d is initialised
        for parameter in (self.weight, self.bias):
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, heads, slots · stride, head_dim) -> (batch, heads, slots, head_dim)"""
        channels = x.transpose(1, 2).unflatten(1, (x.shape[2] // self.stride, self.stride)).flatten(2)
        weight, bias = self.weight.flatten(1).to(x.dtype), self.bias.to(x.dtype)
        slots: Tensor = linear(channels, weight, bias).unflatten(2, (x.shape[1], -1))
        return slots.transpose(1, 2)

    def extra_repr(self) -> str:
        return f"width={self.bias.shape[0]}, stride={self.stride}"


def _append(state: LocalState, k: Tensor, v: Tensor, key_mask: Tensor | None) -> LocalState:
    return LocalState(state.k.append(k), state.v.append(v), append_mask(state.seen, len(state.k), key_mask, k))


def _only(k: Tensor, v: Tensor, keep: Tensor | None, last: int) -> LocalState:
    """The `last` positions, copied to new buffers, so that the memory of those before them can be freed."""
    nothing = LocalState(Rows.empty(k.shape[0]), Rows.empty(k.shape[0]), None)
    if not last:
        return nothing
    return _append(nothing, k[:, :, -last:], v[:, :, -last:], None if keep is None else keep[:, -last:])


def _seen(state: LocalState | CompressedState) -> Tensor | None:
    return None if state.seen is None else state.seen.value[:, 0, :, 0]
