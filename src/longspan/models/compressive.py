"""The Compressive Transformer (Rae et al. 2020): Transformer-XL whose oldest memories are compressed, not dropped.

It is used like Transformer-XL. Only the compression learns from `auxiliary_loss`, and from nothing else:

    logits, memory = model(ids, memory)
    (cross_entropy + model.auxiliary_loss()).backward()

With `reconstruction="bptt"` there is no auxiliary loss: the compression learns from the language model's loss, by
backpropagation through the segments of a call, two or more (Rae et al. 2020, section 3.2).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.transformer_xl import MemoryOptions, SegmentMemory, SegmentState, TransformerXL
from longspan.nn.compression import COMPRESSIONS, Compression
from longspan.nn.feedforward import FeedForward
from longspan.nn.memory_layer import LayerMemory, MemoryLayer, Reach, forget
from longspan.nn.relative_multihead import RelativeAttention


class CompressiveTransformer(TransformerXL):
    """Transformer-XL whose oldest memories are compressed before they are forgotten.

    Each layer reads [compressed slots; memory; segment]; after a segment of s tokens, the s oldest memories become
    ⌊s / ratio⌋ slots, and the oldest slots are forgotten.
    """

    name = "compressive"
    paper = "Rae et al. 2020"

    @dataclass(frozen=True, kw_only=True)
    class Options(MemoryOptions):
        slots: int = option(512, "compressed memories that are kept", low=0)
        ratio: int = option(2, "how many memories one slot is made of", low=1)
        compression: str = option("convolution", "how slots are made", choices=COMPRESSIONS)
        reconstruction: str = option(
            "attention",
            "what the compression learns from: attention or the memories themselves, restored; bptt: the next "
            "segments' loss, through all segments of a call, so texts must be two segments long at least",
            choices=("attention", "autoencoding", "bptt", "none"),
        )
        mask_empty: bool = option(False, "whether empty memory is hidden; in the paper it is zeros, and is read")
        time: str = option(
            "slot", "position of a slot: its index, or that of its newest token", choices=("slot", "true")
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.memory < self.segment:
                raise InvalidOption(
                    f"a segment of {self.segment} pushes out as many memories, and memory is {self.memory}; "
                    "give memory at least segment"
                )
            if self.ratio > self.segment:
                raise InvalidOption(
                    f"ratio must be at most segment, {self.segment}, not {self.ratio}: a segment would fill no slot"
                )

    options: Options

    @property
    def reach(self) -> Reach:
        own = self.options
        furthest = own.slots + own.memory + own.segment - 1
        if own.time == "true" and own.slots:
            segments = -(-own.slots // (own.segment // own.ratio))  # that the slots are of
            furthest = own.memory + (segments + 2) * own.segment
        return Reach(segment=own.segment, memory=own.memory, slots=own.slots, furthest=furthest)

    def _around(self, attention: RelativeAttention, feedforward: FeedForward) -> MemoryLayer:
        own = self.options
        compression = None
        if own.slots:
            compression = Compression(
                own.width, own.ratio, own.compression, decoder=own.reconstruction == "autoencoding"
            )
        return MemoryLayer(
            attention, feedforward, residual=self._residual, compression=compression, loss=own.reconstruction
        )

    def begin(self, batch: int) -> SegmentMemory:
        """The memory before the first segment: all zeros, and hidden if `mask_empty`."""
        own, like = self.options, next(self.parameters())
        memory, slots = (like.new_zeros(batch, count, own.width) for count in (own.memory, own.slots))
        keep = (
            torch.zeros(batch, own.slots + own.memory, dtype=torch.bool, device=self.device) if own.mask_empty else None
        )
        ages = None
        if own.time == "true" and own.slots:  # empty slots are read as zeros at the positions of full ones
            steps = torch.arange(own.slots, 0, -1, device=self.device) * own.ratio
            ages = (own.memory + steps).clamp_max(self.reach.furthest - own.segment).expand(batch, -1).contiguous()
        return SegmentMemory(tuple(LayerMemory(memory, slots, keep, ages) for _ in self.layers))

    def _forget(self, held: LayerMemory, rows: Tensor) -> LayerMemory:
        return forget(held, rows, empty=self.options.mask_empty)

    def set_reach(  # type: ignore[override]  # its memory has another shape
        self,
        *,
        segment: int | None = None,
        memory: int | None = None,
        slots: int | None = None,
        clamp: int | None = None,
    ) -> None:
        """Changes segment or memory; no weight depends on them. enwik8: train with 1152 slots, evaluate with 3072."""
        given: dict[str, Any] = {"segment": segment, "memory": memory, "slots": slots, "clamp": clamp}
        if slots is not None and bool(slots) != bool(self.options.slots):
            raise InvalidOption(
                f"slots were {self.options.slots} and cannot be {slots}: the layers have a compression or not"
            )
        self.options = replace(self.options, **{key: value for key, value in given.items() if value is not None})

    def _fit(self, memory: SegmentMemory, batch: int) -> SegmentMemory:
        memory, own = super()._fit(memory, batch), self.options
        held = memory.layers[0]
        found = held.memory.shape[1], held.slots.shape[1]
        if found != (own.memory, own.slots):
            raise InvalidInput(
                f"the memory has {found[0]} rows and {found[1]} slots, and the model keeps {own.memory} and "
                f"{own.slots}; start with memory=None"
            )
        return memory

    def _distance_count(self, held: LayerMemory, length: int) -> int:
        return self.reach.furthest + 1 if held.ages is not None else super()._distance_count(held, length)

    def _needed(self, state: SegmentState, new: int) -> int:
        return self.reach.furthest + 1


__all__ = ["CompressiveTransformer"]
