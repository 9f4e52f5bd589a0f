"""Blocks one on another: the body of every Transformer, forward and step by step."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.attention.state import State
from longspan.errors import InvalidInput
from longspan.nn.block import Block, BlockState
from longspan.nn.positions import Positions
from longspan.shapes import Hidden, KeyMask


@dataclass(frozen=True)
class StackState(State):
    """The state of each block, and how many tokens were read."""

    blocks: tuple[BlockState, ...]
    length: int
    align: bool = False  # whether `alignment` is wanted
    alignment: Tensor | None = None  # (batch, new tokens, source): the last cross-attention, mean over its heads


class Body(nn.Module, ABC):
    """What stands between embedding and output layer: a `Stack`, or something that is used as one."""

    def __init__(self, out_width: int) -> None:
        super().__init__()
        self.out_width = out_width  # of the states that come out

    @abstractmethod
    def forward(
        self,
        x: Hidden,
        context: Hidden | None = None,
        *,
        key_mask: KeyMask | None = None,
        context_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> Hidden:
        """All tokens at once."""

    @abstractmethod
    def start(
        self,
        batch: int,
        context: Hidden | None = None,
        *,
        context_mask: KeyMask | None = None,
        align: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Any:
        """The state before the first token; it has `length`, and with `align`, `alignment` after each step."""

    @abstractmethod
    def extend(
        self,
        x: Hidden,
        state: Any,
        *,
        key_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> tuple[Hidden, Any]:
        """The next tokens, any number of them, and the state after them."""

    def _check_align(self, context: Hidden | None, align: bool) -> None:
        if align and context is None:
            raise InvalidInput("without another sequence there is nothing to be aligned with; leave out align")


class Stack(Body):
    """`blocks` in order, then `norm`. Streams from the user go to the blocks whose mechanism reads them.

    `order` says which block each layer is, where layers share their weights (ALBERT): 0, 0, 1, 1 for four layers of
    two blocks.
    """

    def __init__(self, blocks: Sequence[Block], norm: nn.Module, order: Sequence[int] | None = None) -> None:
        super().__init__(blocks[0].mixer.width)
        self.blocks, self.norm = nn.ModuleList(blocks), norm
        self.order = tuple(range(len(blocks)) if order is None else order)

    def forward(
        self,
        x: Hidden,
        context: Hidden | None = None,
        *,
        key_mask: KeyMask | None = None,
        context_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> Hidden:
        check_streams((block.mixer.mechanism for block in self.layers()), streams)
        for block in self.layers():
            x = block(
                x,
                context,
                key_mask=key_mask,
                context_mask=context_mask,
                streams=_read_by(block, streams),
                positions=positions,
            )
        return self.norm(x)

    def start(
        self,
        batch: int,
        context: Hidden | None = None,
        *,
        context_mask: KeyMask | None = None,
        align: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> StackState:
        """The state before the first token; with `align`, each step says what it was aligned with in the context."""
        self._check_align(context, align)
        states = (
            block.start(batch, context, context_mask=context_mask, dtype=dtype, device=device)
            for block in self.layers()
        )
        return StackState(tuple(states), 0, align)

    def extend(
        self,
        x: Hidden,
        state: StackState,
        *,
        key_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> tuple[Hidden, StackState]:
        """The next tokens, any number of them, and the state after them."""
        check_streams((block.mixer.mechanism for block in self.layers()), streams)
        length, after, alignment = state.length + x.shape[1], [], None
        for index, (block, before) in enumerate(zip(self.layers(), state.blocks)):
            last = state.align and index == len(state.blocks) - 1
            x, new, alignment = block.step(
                x,
                before,
                key_mask=key_mask,
                streams=_read_by(block, streams),
                positions=positions,
                align=last,
            )
            after.append(new)
        return self.norm(x), StackState(tuple(after), length, state.align, alignment)

    def layers(self) -> Iterator[Block]:
        """The block of each layer, bottom up."""
        for index in self.order:
            block = self.blocks[index]
            assert isinstance(block, Block)
            yield block


def check_streams(mechanisms: Iterable[Attention], streams: Mapping[str, Tensor] | None) -> None:
    """A stream that no layer reads is a mistake."""
    if not streams:
        return
    known = {stream.name for mechanism in mechanisms for stream in mechanism.streams}
    for name in streams:
        if name not in known:
            raise InvalidInput(f"no layer reads a stream {name!r}; they read: {', '.join(sorted(known)) or 'none'}")


def _read_by(block: Block, streams: Mapping[str, Tensor] | None) -> dict[str, Tensor] | None:
    own = {stream.name for stream in block.mixer.mechanism.streams}
    return {name: tensor for name, tensor in streams.items() if name in own} if streams else None


__all__ = ["Body", "Stack", "StackState", "check_streams"]
