"""Layers that remember the text before: Transformer-XL (Dai et al. 2019), Compressive Transformer (Rae et al. 2020).

A text is read in segments. A layer keeps its *inputs* of the segments before, without their gradient, and reads them in
front of the segment at hand. Distances are relative (`attention/mechanisms/relative.py`), so that no token has a fixed
position. With a compression, what falls out of the memory goes on as fewer slots.

What a query may read: of its own segment all up to itself, and all that memory held when the segment began; or, with
`same_length`, exactly as many keys as the memory has rows, whatever the segments are.

`forward` reads whole texts, several segments at a time, and `extend` goes on from any place with keys and values
already projected. Both follow the same rule and give the same.
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
from longspan.nn.relative_multihead import RelativeAttention, twice
from longspan.nn.residual import Residual
from longspan.shapes import Hidden, KeyMask


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How a text is cut, and how much of what was before is kept."""

    segment: int
    memory: int  # rows
    slots: int = 0  # of compressed memory
    same_length: bool = False
    furthest: int  # the largest distance that is told

    @property
    def window(self) -> int | None:
        """How many keys a query reads at most, where that is fixed."""
        return self.memory if self.same_length else None

    def pieces(self, length: int, begun: int) -> list[int]:
        """The lengths of the next tokens' parts, `begun` tokens of a segment having been read."""
        ends = [min(length, end) for end in range(self.segment - begun, length + self.segment, self.segment)]
        return [end - begin for begin, end in zip([0, *ends], ends)]


@dataclass(frozen=True)
class LayerMemory(State):
    """One layer's inputs of the segments before, oldest first, and what still older ones were compressed to."""

    memory: Tensor  # (batch, rows, width)
    slots: Tensor  # (batch, slots, width)
    keep: Tensor | None = None  # (batch, slots + rows): which may be read
    ages: Tensor | None = None  # (batch, slots): how far before the segment each slot stands, if not told by its place


@dataclass(frozen=True)
class LayerState(State):
    """What one layer reads when decoding: slots, memory and the segment so far, projected."""

    k: Rows
    v: Rows
    keep: Tensor | None
    held: LayerMemory | None = None  # with compression: what it will compress
    segment: Rows | None = None  # with compression: the layer's inputs of the segment so far
    usage: Tensor | None = None  # (batch, segment): how much the oldest memories were read in this segment


class MemoryLayer(nn.Module):
    """Attention to memory and segment, then a feed-forward layer, each inside a residual connection."""

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
        self.around_attention, self.around_feedforward = residual(), residual()
        self.auxiliary_loss: Tensor | None = None

    # A whole text

    def forward(
        self, x: Hidden, held: LayerMemory, reach: Reach, r: Distances, key_mask: KeyMask | None = None
    ) -> tuple[Hidden, LayerMemory]:
        """The outputs, and what the layer remembers after them."""
        self.auxiliary_loss = None

        def mix(y: Tensor) -> Tensor:
            nonlocal held
            out, held = self._segments(y, x.detach(), held, reach, r, key_mask)
            return out

        x = self.around_attention(x, mix)
        return self.around_feedforward(x, self.feedforward), held

    def _segments(
        self, y: Tensor, x: Tensor, held: LayerMemory, reach: Reach, r: Distances, key_mask: Tensor | None
    ) -> tuple[Tensor, LayerMemory]:
        attention, sizes = self.attention, reach.pieces(x.shape[1], 0)
        queries = attention.split(attention.q(y)).split(sizes, 2)
        own, later = twice(y, self._seen(x), attention.kv.weight)
        k, v = attention.keys(attention.kv(self._seen(torch.cat([held.slots, held.memory], 1))))
        parts = zip(queries, own.split(sizes, 1), later.split(sizes, 1), x.split(sizes, 1), _split(key_mask, sizes))
        outs = []
        for index, (q, own_kv, later_kv, inputs, mask) in enumerate(parts):
            own_k, own_v = attention.keys(own_kv)
            keep, ages = _join(held.keep, k.shape[2], mask, inputs), self._ages(held, reach)
            all_k, all_v = torch.cat([k, own_k], 2), torch.cat([v, own_v], 2)
            outs.append(attention.read(q, all_k, all_v, r, keep, reach.window, ages))
            used = self._usage(q, all_k, r, keep, ages, reach, inputs.shape[1])
            held, new = self._turn(held, inputs, mask, used, reach)
            if index + 1 < len(sizes):
                k, v = self._shift((k, v), attention.keys(later_kv), new, reach)
        return attention.merge(torch.cat(outs, 2)), held

    # Step by step

    def start(self, held: LayerMemory) -> LayerState:
        """The state from which to go on after what is held."""
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
        """The next tokens, `begun` of their segment having been read; cut where segments end."""

        def mix(y: Tensor) -> Tensor:
            nonlocal state
            attention, sizes = self.attention, [len(y[0])] if reach.same_length else reach.pieces(y.shape[1], begun)
            q, kv = attention.split(attention.q(y)), attention.kv(y)
            parts = zip(q.split(sizes, 2), kv.split(sizes, 1), x.split(sizes, 1), _split(key_mask, sizes))
            outs, place = [], begun
            for queries, new, inputs, mask in parts:
                place += inputs.shape[1]
                out, state = self._step(queries, attention.keys(new), inputs, mask, state, reach, r)
                outs.append(out)
                if place == reach.segment and not reach.same_length:
                    state, place = self._end(state, reach), 0
            return attention.merge(torch.cat(outs, 2) if len(outs) > 1 else outs[0])

        x = self.around_attention(x, mix)
        return self.around_feedforward(x, self.feedforward), state

    def _step(
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
            if reach.same_length:  # the next query reads itself and one less
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
        """What is left of a state when its segment is full."""
        if state.held is None or state.segment is None:
            return LayerState(state.k.trim(reach.memory), state.v.trim(reach.memory), _last(state.keep, reach.memory))
        own = state.segment.value[:, 0]
        mask = None if state.keep is None else state.keep[:, -own.shape[1] :]
        held, new = self._turn(state.held, own, mask, state.usage, reach)
        past = len(state.k) - own.shape[1]
        before, after = ([t.value[:, :, part] for t in (state.k, state.v)] for part in (slice(past), slice(past, None)))
        k, v = self._shift((before[0], before[1]), (after[0], after[1]), new, reach)
        batch = len(own)
        return LayerState(Rows.empty(batch).append(k), Rows.empty(batch).append(v), held.keep, held, Rows.empty(batch))

    # From one segment to the next

    def _turn(
        self, held: LayerMemory, x: Tensor, mask: Tensor | None, used: Tensor | None, reach: Reach
    ) -> tuple[LayerMemory, Slots | None]:
        """What is held after a segment of inputs x; the memories that fall out are compressed first."""
        count, slots = x.shape[1], held.slots.shape[1]
        keep = _join(held.keep, slots + held.memory.shape[1], mask, x)
        memory = _last(torch.cat([held.memory, x], 1), reach.memory)
        if self.compression is None:
            return LayerMemory(memory, held.slots, _last(keep, reach.memory)), None
        old = held.memory[:, :count]
        old_keep = None if keep is None else keep[:, slots : slots + count]
        new = self.compression(old, old_keep, used)
        self._learn(x, old, old_keep, new)
        new = new._replace(value=new.value.detach())  # the text's own loss never trains the compression
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
        self, past: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], new: Slots | None, reach: Reach
    ) -> tuple[Tensor, Tensor]:
        """The same of keys and values."""
        made = None if new is None else self.attention.keys(self.attention.kv(self._seen(new.value)))
        shifted = []
        for index in (0, 1):
            slots, memory = past[index][:, :, : reach.slots], past[index][:, :, reach.slots :]
            if made is not None:
                slots = _last(torch.cat([slots, made[index]], 2), reach.slots, 2)
            shifted.append(torch.cat([slots, _last(torch.cat([memory, own[index]], 2), reach.memory, 2)], 2))
        return shifted[0], shifted[1]

    def _usage(
        self, q: Tensor, k: Tensor, r: Distances, keep: Tensor | None, ages: Tensor | None, reach: Reach, oldest: int
    ) -> Tensor | None:
        if self.compression is None or self.compression.kind != "most_used":
            return None
        columns, attention = reach.slots + oldest, self.attention
        found = relative.usage(q, k, r, attention.u, attention.w, columns=columns, keep=keep, ages=ages)
        return found[:, reach.slots :]

    def _learn(self, x: Tensor, old: Tensor, keep: Tensor | None, new: Slots) -> None:
        """Adds what the compression lost to the auxiliary loss; nothing but the compression learns from it."""
        compression = self.compression
        assert compression is not None
        if not self.training or not torch.is_grad_enabled() or self.loss == "none" or not new.value.shape[1]:
            return
        if self.loss == "autoencoding":
            back = compression.restore(new.value)
            lost = distance(old[:, : back.shape[1]], back)
        else:
            x, before, after = (self._frozen(part) for part in (x, old, new.value))
            wanted = self.attention.content(x, before, keep)
            lost = distance(wanted, self.attention.content(x, after, new.keep))
        if new.keep is not None:
            lost = lost * new.keep.any(1)
        loss = lost.mean()
        if loss.requires_grad:
            self.auxiliary_loss = loss if self.auxiliary_loss is None else self.auxiliary_loss + loss

    def _seen(self, x: Tensor) -> Tensor:
        """What attention sees of the layer's inputs: with norms in front, memory is normed as the segment is."""
        return self.around_attention.norm(x) if self.around_attention.norm_position == "pre" else x

    def _frozen(self, x: Tensor) -> Tensor:
        if self.around_attention.norm_position != "pre":
            return x
        norm = self.around_attention.norm
        return functional_call(norm, {name: weight.detach() for name, weight in norm.named_parameters()}, (x,))

    @staticmethod
    def _ages(held: LayerMemory, reach: Reach) -> Tensor | None:
        """How far all that is held stands before the segment, where places do not tell."""
        if held.ages is None:
            return None
        near = torch.arange(reach.memory, 0, -1, device=held.ages.device)
        return torch.cat([held.ages, near.expand(len(held.ages), -1)], 1)


def _grown(ages: Tensor | None, begun: int) -> Tensor | None:
    """The same for queries in the middle of a segment, whose memory holds the tokens before them too."""
    if ages is None:
        return None
    near = torch.arange(begun, 0, -1, device=ages.device)
    return torch.cat([ages + begun, near.expand(len(ages), -1)], 1)


def _join(keep: Tensor | None, past: int, mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Which of memory and new tokens may be read; None: all."""
    if keep is None and mask is None:
        return None
    batch, new = like.shape[:2]
    if keep is None:
        keep = torch.ones(batch, past, dtype=torch.bool, device=like.device)
    if mask is None:
        mask = torch.ones(batch, new, dtype=torch.bool, device=like.device)
    return torch.cat([keep, mask], 1)


def _last(x: Any, count: int, dim: int = 1) -> Any:
    """The last `count` rows, or as many as there are."""
    return x if x is None or x.shape[dim] <= count else x.narrow(dim, x.shape[dim] - count, count)


def _split(mask: Tensor | None, sizes: list[int]) -> Iterator[Tensor | None]:
    return iter([None] * len(sizes) if mask is None else mask.split(sizes, 1))


def trim(held: LayerMemory, reach: Reach) -> LayerMemory:
    """No more rows than are kept; their number may have been set anew."""
    slots, memory = _last(held.slots, reach.slots), _last(held.memory, reach.memory)
    if slots is held.slots and memory is held.memory:
        return held
    keep, past = held.keep, held.slots.shape[1]
    if keep is not None:
        keep = torch.cat([_last(keep[:, :past], reach.slots), _last(keep[:, past:], reach.memory)], 1)
    return LayerMemory(memory, slots, keep, _last(held.ages, reach.slots))


def forget(held: LayerMemory, rows: Tensor, *, empty: bool) -> LayerMemory:
    """The same without what the batch rows `rows` remember: `empty` memory is not read, otherwise it is zeros."""
    if not empty:
        gone = rows[:, None, None]
        return replace(held, memory=held.memory.masked_fill(gone, 0.0), slots=held.slots.masked_fill(gone, 0.0))
    past = held.slots.shape[1] + held.memory.shape[1]
    keep = torch.ones(len(rows), past, dtype=torch.bool, device=rows.device) if held.keep is None else held.keep
    return replace(held, keep=keep & ~rows[:, None])


__all__ = ["LayerMemory", "LayerState", "MemoryLayer", "Reach", "forget", "trim"]
