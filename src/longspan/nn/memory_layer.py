"""Layers with memory: Transformer-XL (Dai et al. 2019) and Compressive Transformer (Rae et al. 2020).

A text is read in segments. A layer keeps its *inputs* of earlier segments, detached, and attends to them before the
current segment. Distances are relative (`attention/mechanisms/relative.py`), so no token has a fixed position. With a
compression, memories that are dropped are compressed into fewer slots.

A query reads its own segment up to itself, and all of the memory at the start of the segment; or, with `same_length`,
exactly as many keys as the memory has rows, wherever segments end.

`forward` reads whole texts, several segments at a time. `extend` continues from any token with keys and values that are
projected already. Both give the same result.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from longspan.attention.mechanisms import relative
from longspan.attention.mechanisms.relative import Distances
from longspan.attention.state import Rows, State
from longspan.nn.compression import Compression, Slots, distance
from longspan.nn.relative_multihead import RelativeAttention, project_twice
from longspan.nn.residual import Residual
from longspan.shapes import Hidden, KeyMask


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Length of segments, and size of the memory."""

    segment: int
    memory: int  # rows
    slots: int = 0  # of compressed memory
    same_length: bool = False
    furthest: int  # larger distances count as this one

    @property
    def window(self) -> int | None:
        """The number of keys that each query reads, if fixed."""
        return self.memory if self.same_length else None

    def pieces(self, length: int, begun: int) -> list[int]:
        """The lengths into which segment ends cut the next tokens, after `begun` tokens of a segment."""
        ends = [min(length, end) for end in range(self.segment - begun, length + self.segment, self.segment)]
        return [end - begin for begin, end in zip([0, *ends], ends)]


@dataclass(frozen=True)
class LayerMemory(State):
    """One layer's inputs of earlier segments, oldest first, and the compressed slots of still older ones."""

    memory: Tensor  # (batch, rows, width)
    slots: Tensor  # (batch, slots, width)
    keep: Tensor | None = None  # (batch, slots + rows): True where it may be read
    ages: Tensor | None = None  # (batch, slots): distance of each slot to the segment, if not given by its index


@dataclass(frozen=True)
class LayerState(State):
    """One layer's keys and values when decoding: slots, memory and the segment so far."""

    k: Rows
    v: Rows
    keep: Tensor | None
    held: LayerMemory | None = None  # with compression: the memories to compress
    segment: Rows | None = None  # with compression: the layer's inputs of the segment so far
    usage: Tensor | None = None  # (batch, segment): how much the oldest memories were read in this segment


class MemoryLayer(nn.Module):
    """Attention to memory and segment, then a feed-forward layer, each inside a residual connection.

    `loss` is what the compression learns from. With "bptt" gradients pass from a segment to those before it in the
    same call, through memory and slots; otherwise they stop at the segment.
    """

    def __init__(
        self,
        attention: RelativeAttention,
        feedforward: nn.Module,
        *,
        residual: Callable[[], Residual],
        compression: Compression | None = None,
        loss: str = "none",
    ) -> None:
        super().__init__()
        self.attention, self.feedforward, self.compression, self.loss = attention, feedforward, compression, loss
        self.through_time = loss == "bptt"
        self.around_attention, self.around_feedforward = residual(), residual()
        self.auxiliary_loss: Tensor | None = None

    # A whole text

    def forward(
        self, x: Hidden, held: LayerMemory, reach: Reach, r: Distances, key_mask: KeyMask | None = None
    ) -> tuple[Hidden, LayerMemory]:
        """The outputs, and the memory after them."""
        self.auxiliary_loss = None

        def mix(y: Tensor) -> Tensor:
            nonlocal held
            out, held = self._segments(y, x if self.through_time else x.detach(), held, reach, r, key_mask)
            return out

        x = self.around_attention(x, mix)
        return self.around_feedforward(x, self.feedforward), held.detach()

    def _segments(
        self, y: Tensor, x: Tensor, held: LayerMemory, reach: Reach, r: Distances, key_mask: Tensor | None
    ) -> tuple[Tensor, LayerMemory]:
        attention, sizes = self.attention, reach.pieces(x.shape[1], 0)
        queries = attention.split(attention.q(y)).split(sizes, 2)
        if self.through_time:
            now = later = attention.kv(y)
        else:
            now, later = project_twice(y, self._seen(x), attention.kv.weight)
        k, v = attention.keys(attention.kv(self._seen(torch.cat([held.slots, held.memory], 1))))
        segments = zip(queries, now.split(sizes, 1), later.split(sizes, 1), x.split(sizes, 1), _split(key_mask, sizes))
        outs = []
        for index, (q, new_kv, later_kv, inputs, mask) in enumerate(segments):
            new_k, new_v = attention.keys(new_kv)
            keep, ages = _join(held.keep, k.shape[2], mask, inputs), self._ages(held, reach)
            all_k, all_v = torch.cat([k, new_k], 2), torch.cat([v, new_v], 2)
            outs.append(attention.read(q, all_k, all_v, r, keep, reach.window, ages))
            used = self._usage(q, all_k, r, keep, ages, reach, inputs.shape[1])
            held, new = self._advance(held, inputs, mask, used, reach)
            if index + 1 < len(sizes):
                k, v = self._shift((k, v), attention.keys(later_kv), new, reach)
        return attention.merge(torch.cat(outs, 2)), held

    # Step by step

    def start(self, held: LayerMemory) -> LayerState:
        """The decoding state that continues after this memory."""
        k, v = self.attention.keys(self.attention.kv(self._seen(torch.cat([held.slots, held.memory], 1))))
        batch = len(k)
        rows = Rows.empty(batch).append(k) if k.shape[2] else Rows.empty(batch)
        values = Rows.empty(batch).append(v) if v.shape[2] else Rows.empty(batch)
        if self.compression is None:
            return LayerState(rows, values, held.keep)
        return LayerState(rows, values, held.keep, held, Rows.empty(batch))

    def extend(
        self, x: Hidden, state: LayerState, reach: Reach, r: Distances, begun: int, key_mask: KeyMask | None = None
    ) -> tuple[Hidden, LayerState]:
        """The next tokens, after `begun` tokens of their segment; they are cut where segments end."""

        def mix(y: Tensor) -> Tensor:
            nonlocal state
            attention, sizes = self.attention, [len(y[0])] if reach.same_length else reach.pieces(y.shape[1], begun)
            q, kv = attention.split(attention.q(y)), attention.kv(y)
            pieces = zip(q.split(sizes, 2), kv.split(sizes, 1), x.split(sizes, 1), _split(key_mask, sizes))
            outs, position = [], begun
            for queries, new, inputs, mask in pieces:
                position += inputs.shape[1]
                out, state = self._attend(queries, attention.keys(new), inputs, mask, state, reach, r)
                outs.append(out)
                if position == reach.segment and not reach.same_length:
                    state, position = self._end(state, reach), 0
            return attention.merge(torch.cat(outs, 2) if len(outs) > 1 else outs[0])

        x = self.around_attention(x, mix)
        return self.around_feedforward(x, self.feedforward), state

    def _attend(
        self,
        q: Tensor,
        new: tuple[Tensor, Tensor],
        inputs: Tensor,
        mask: Tensor | None,
        state: LayerState,
        reach: Reach,
        r: Distances,
    ) -> tuple[Tensor, LayerState]:
        keep = _join(state.keep, len(state.k), mask, inputs)
        k, v = state.k.append(new[0]), state.v.append(new[1])
        if state.held is None or state.segment is None:
            out = self.attention.read(q, k.value, v.value, r, keep, reach.window, None)
            if reach.same_length:  # the next query reads itself and one key less of these
                k, v, keep = k.trim(reach.memory - 1), v.trim(reach.memory - 1), _last(keep, reach.memory - 1)
            return out, LayerState(k, v, keep)
        ages = _grown(self._ages(state.held, reach), len(state.segment))
        out = self.attention.read(q, k.value, v.value, r, keep, None, ages)
        used = self._usage(q, k.value, r, keep, ages, reach, reach.segment)
        if used is not None and state.usage is not None:
            used = used + state.usage
        segment = state.segment.append(inputs.detach()[:, None])
        return out, LayerState(k, v, keep, state.held, segment, used)

    def _end(self, state: LayerState, reach: Reach) -> LayerState:
        """The state at the end of a segment."""
        if state.held is None or state.segment is None:
            return LayerState(state.k.trim(reach.memory), state.v.trim(reach.memory), _last(state.keep, reach.memory))
        inputs = state.segment.value[:, 0]
        mask = None if state.keep is None else state.keep[:, -inputs.shape[1] :]
        held, new = self._advance(state.held, inputs, mask, state.usage, reach)
        past = len(state.k) - inputs.shape[1]
        before, after = ([t.value[:, :, rows] for t in (state.k, state.v)] for rows in (slice(past), slice(past, None)))
        k, v = self._shift((before[0], before[1]), (after[0], after[1]), new, reach)
        batch = len(inputs)
        return LayerState(Rows.empty(batch).append(k), Rows.empty(batch).append(v), held.keep, held, Rows.empty(batch))

    # From one segment to the next

    def _advance(
        self, held: LayerMemory, x: Tensor, mask: Tensor | None, used: Tensor | None, reach: Reach
    ) -> tuple[LayerMemory, Slots | None]:
        """The memory after a segment of inputs x; dropped memories are compressed first."""
        count, slots = x.shape[1], held.slots.shape[1]
        keep = _join(held.keep, slots + held.memory.shape[1], mask, x)
        memory = _last(torch.cat([held.memory, x], 1), reach.memory)
        if self.compression is None:
            return LayerMemory(memory, held.slots, _last(keep, reach.memory)), None
        old = held.memory[:, :count]
        old_keep = None if keep is None else keep[:, slots : slots + count]
        new = self.compression(old, old_keep, used)
        self._learn(x, old, old_keep, new)
        if not self.through_time:
            new = new._replace(value=new.value.detach())  # the language model's loss does not train the compression
        if keep is not None and new.keep is not None:
            keep = torch.cat(
                [_last(torch.cat([keep[:, :slots], new.keep], 1), reach.slots), _last(keep, reach.memory)], 1
            )
        ages = held.ages
        if ages is not None:
            fresh = (reach.memory + count - new.newest).expand(len(ages), -1)
            ages = _last(torch.cat([ages + count, fresh], 1), reach.slots).clamp_max(reach.furthest - reach.segment)
        return LayerMemory(memory, _last(torch.cat([held.slots, new.value], 1), reach.slots), keep, ages), new

    def _shift(
        self, past: tuple[Tensor, Tensor], segment: tuple[Tensor, Tensor], new: Slots | None, reach: Reach
    ) -> tuple[Tensor, Tensor]:
        """`_advance` for keys and values."""
        projected = None if new is None else self.attention.keys(self.attention.kv(self._seen(new.value)))
        shifted = []
        for index in (0, 1):
            slots, memory = past[index][:, :, : reach.slots], past[index][:, :, reach.slots :]
            if projected is not None:
                slots = _last(torch.cat([slots, projected[index]], 2), reach.slots, 2)
            shifted.append(torch.cat([slots, _last(torch.cat([memory, segment[index]], 2), reach.memory, 2)], 2))
        return shifted[0], shifted[1]

    def _usage(
        self, q: Tensor, k: Tensor, r: Distances, keep: Tensor | None, ages: Tensor | None, reach: Reach, oldest: int
    ) -> Tensor | None:
        if self.compression is None or self.compression.kind != "most_used":
            return None
        columns, attention = reach.slots + oldest, self.attention
        usage = relative.usage(q, k, r, attention.u, attention.w, columns=columns, keep=keep, ages=ages)
        return usage[:, reach.slots :]

    def _learn(self, x: Tensor, old: Tensor, keep: Tensor | None, new: Slots) -> None:
        """Adds the compression loss to the auxiliary loss; it trains the compression only."""
        compression = self.compression
        assert compression is not None
        idle = self.loss in ("none", "bptt") or not new.value.shape[1]
        if idle or not self.training or not torch.is_grad_enabled():
            return
        if self.loss == "autoencoding":
            restored = compression.restore(new.value)
            lost = distance(old[:, : restored.shape[1]], restored)
        else:
            x, before, after = (self._frozen(rows) for rows in (x, old, new.value))
            expected = self.attention.content(x, before, keep)
            lost = distance(expected, self.attention.content(x, after, new.keep))
        if new.keep is not None:
            lost = lost * new.keep.any(1)
        loss = lost.mean()
        if loss.requires_grad:
            self.auxiliary_loss = loss if self.auxiliary_loss is None else self.auxiliary_loss + loss

    def _seen(self, x: Tensor) -> Tensor:
        """The attention's view of the layer's inputs: a pre-norm also applies to memory."""
        return self.around_attention.norm(x) if self.around_attention.norm_position == "pre" else x

    def _frozen(self, x: Tensor) -> Tensor:
        if self.around_attention.norm_position != "pre":
            return x
        norm = self.around_attention.norm
        frozen = {name: weight.detach() for name, weight in norm.named_parameters()}
        out: Tensor = functional_call(norm, frozen, (x,))
        return out

    @staticmethod
    def _ages(held: LayerMemory, reach: Reach) -> Tensor | None:
        """The distances of slots and memory to the segment, unless they follow from their index."""
        if held.ages is None:
            return None
        near = torch.arange(reach.memory, 0, -1, device=held.ages.device)
        return torch.cat([held.ages, near.expand(len(held.ages), -1)], 1)


def _grown(ages: Tensor | None, begun: int) -> Tensor | None:
    """The distances for queries after `begun` tokens of a segment, which count as memory too."""
    if ages is None:
        return None
    near = torch.arange(begun, 0, -1, device=ages.device)
    return torch.cat([ages + begun, near.expand(len(ages), -1)], 1)


def _join(keep: Tensor | None, past: int, mask: Tensor | None, like: Tensor) -> Tensor | None:
    """The mask of memory and new tokens; None: all may be read."""
    if keep is None and mask is None:
        return None
    batch, new = like.shape[:2]
    if keep is None:
        keep = torch.ones(batch, past, dtype=torch.bool, device=like.device)
    if mask is None:
        mask = torch.ones(batch, new, dtype=torch.bool, device=like.device)
    return torch.cat([keep, mask], 1)


def _last(x: Any, count: int, dim: int = 1) -> Any:
    """The last `count` rows, or all if there are fewer."""
    return x if x is None or x.shape[dim] <= count else x.narrow(dim, x.shape[dim] - count, count)


def _split(mask: Tensor | None, sizes: list[int]) -> Iterator[Tensor | None]:
    return iter([None] * len(sizes) if mask is None else mask.split(sizes, 1))


def trim(held: LayerMemory, reach: Reach) -> LayerMemory:
    """Cuts the memory to the sizes of `reach`, which may have changed."""
    slots, memory = _last(held.slots, reach.slots), _last(held.memory, reach.memory)
    if slots is held.slots and memory is held.memory:
        return held
    keep, past = held.keep, held.slots.shape[1]
    if keep is not None:
        keep = torch.cat([_last(keep[:, :past], reach.slots), _last(keep[:, past:], reach.memory)], 1)
    return LayerMemory(memory, slots, keep, _last(held.ages, reach.slots))


def forget(held: LayerMemory, rows: Tensor, *, empty: bool) -> LayerMemory:
    """Clears the memory of the batch rows `rows`: `empty` masks it, otherwise it becomes zeros."""
    if not empty:
        gone = rows[:, None, None]
        return replace(held, memory=held.memory.masked_fill(gone, 0.0), slots=held.slots.masked_fill(gone, 0.0))
    past = held.slots.shape[1] + held.memory.shape[1]
    keep = torch.ones(len(rows), past, dtype=torch.bool, device=rows.device) if held.keep is None else held.keep
    return replace(held, keep=keep & ~rows[:, None])


__all__ = ["LayerMemory", "LayerState", "MemoryLayer", "Reach", "forget", "trim"]
