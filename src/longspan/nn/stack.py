"""A stack of blocks: the body of every Transformer, in parallel or step by step."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.attention.state import State
from longspan.errors import InvalidInput
from longspan.nn.block import Block, BlockState
from longspan.nn.inputs import NO_INPUTS, BlockInputs
from longspan.shapes import Hidden


@dataclass(frozen=True)
class StackState(State):
    """The state of each block, and the number of tokens read so far."""

    blocks: tuple[BlockState, ...]
    length: int
    align: bool = False  # whether to keep `alignment`
    alignment: Tensor | None = None  # (batch, new tokens, source): last cross-attention, mean over heads


class Body(nn.Module, ABC):
    """The layers between embedding and output layer: a `Stack`, or a class with the same methods."""

    def __init__(self, out_width: int) -> None:
        super().__init__()
        self.out_width = out_width  # width of the output

    @abstractmethod
    def forward(self, x: Hidden, inputs: BlockInputs = NO_INPUTS) -> Hidden:
        """All tokens at once."""

    @abstractmethod
    def start(
        self,
        batch: int,
        inputs: BlockInputs = NO_INPUTS,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Any:
        """The state before the first token; it has `length` and, after each step with `align`, `alignment`."""

    @abstractmethod
    def extend(self, x: Hidden, state: Any, inputs: BlockInputs = NO_INPUTS) -> tuple[Hidden, Any]:
        """The next tokens, any number of them, and the state after them."""

    def _check_align(self, inputs: BlockInputs) -> None:
        if inputs.align and inputs.context is None:
            raise InvalidInput("alignment needs cross-attention: give context, or leave out align")


class Stack(Body):
    """`blocks` in order, then `norm`. Each block receives the streams that its mechanism reads.

    `order` gives the block of each layer if layers share weights (ALBERT): 0, 0, 1, 1 for four layers of two blocks.
    """

    def __init__(self, blocks: Sequence[Block], norm: nn.Module, order: Sequence[int] | None = None) -> None:
        super().__init__(blocks[0].mixer.width)
        self.blocks, self.norm = nn.ModuleList(blocks), norm
        self.order = tuple(range(len(blocks)) if order is None else order)

    def forward(self, x: Hidden, inputs: BlockInputs = NO_INPUTS) -> Hidden:
        check_streams((block.mixer.mechanism for block in self.layers()), inputs.streams)
        for block in self.layers():
            x = block(x, _inputs_of(block, inputs))
        out: Tensor = self.norm(x)
        return out

    def start(
        self,
        batch: int,
        inputs: BlockInputs = NO_INPUTS,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> StackState:
        """The state before the first token; with `align`, each step keeps the last block's alignment."""
        self._check_align(inputs)
        states = (block.start(batch, inputs, dtype=dtype, device=device) for block in self.layers())
        return StackState(tuple(states), 0, inputs.align)

    def extend(self, x: Hidden, state: StackState, inputs: BlockInputs = NO_INPUTS) -> tuple[Hidden, StackState]:
        """The next tokens, any number of them, and the state after them."""
        check_streams((block.mixer.mechanism for block in self.layers()), inputs.streams)
        length, blocks = state.length + x.shape[1], []
        last, alignment = len(state.blocks) - 1, None
        for index, (block, before) in enumerate(zip(self.layers(), state.blocks)):
            block_inputs = _inputs_of(block, inputs)
            if state.align and index == last:
                block_inputs = replace(block_inputs, align=True)
            x, after = block.extend(x, before, block_inputs)
            if after.alignment is not None:
                after, alignment = replace(after, alignment=None), after.alignment
            blocks.append(after)
        return self.norm(x), StackState(tuple(blocks), length, state.align, alignment)

    def layers(self) -> Iterator[Block]:
        """The block of each layer, bottom up."""
        for index in self.order:
            block = self.blocks[index]
            assert isinstance(block, Block)
            yield block


def check_streams(mechanisms: Iterable[Attention], streams: Mapping[str, Tensor] | None) -> None:
    """Refuses a stream that no layer reads."""
    if not streams:
        return
    known = {stream.name for mechanism in mechanisms for stream in mechanism.streams}
    for name in streams:
        if name not in known:
            raise InvalidInput(f"no layer reads a stream {name!r}; they read: {', '.join(sorted(known)) or 'none'}")


def _inputs_of(block: Block, inputs: BlockInputs) -> BlockInputs:
    """The inputs with only the streams that the block's mechanism reads."""
    if not inputs.streams:
        return inputs
    names = {stream.name for stream in block.mixer.mechanism.streams}
    return replace(inputs, streams={name: tensor for name, tensor in inputs.streams.items() if name in names})


__all__ = ["Body", "Stack", "StackState", "check_streams"]
