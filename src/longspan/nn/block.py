"""A Transformer block: attention, cross-attention in decoders, feed-forward layer, each with a residual connection."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longspan.attention.state import State
from longspan.errors import InvalidInput
from longspan.nn.convolution import ConvolutionState, SeparableConvolution
from longspan.nn.inputs import NO_INPUTS, BlockInputs
from longspan.nn.multihead import Context, MultiHead, MultiHeadState
from longspan.nn.residual import Residual
from longspan.shapes import Hidden


@dataclass(frozen=True)
class BlockState(State):
    """What a block remembers between decoding steps."""

    mixer: MultiHeadState
    context: Context | None
    transition: ConvolutionState | None = None  # the tokens that a convolution looks back at
    alignment: Tensor | None = None  # (batch, new tokens, source): weights of cross-attention, mean over the heads


class Block(nn.Module):
    """`mixer`, then (in a decoder that reads another sequence) `cross`, then `feedforward`.

    `feedforward` may also be a `SeparableConvolution`, which reads neighbouring tokens, or None: attention with
    persistent vectors can replace it (the all-attention layer of Sukhbaatar et al. 2019).

    `parallel` adds both to the same states, x + mixer(norm x) + feedforward(norm x), as GPT-J and GPT-NeoX do.

    Each sub-layer has its own residual connection, built by `residual`:

    >>> block = Block(mixer, FeedForward(512, 2048), residual=lambda: Residual(512, norm_position="pre", dropout=0.1))
    """

    def __init__(
        self,
        mixer: MultiHead,
        feedforward: nn.Module | None,
        *,
        residual: Callable[[], Residual],
        cross: MultiHead | None = None,
        parallel: bool = False,
    ) -> None:
        super().__init__()
        self.parallel = parallel
        self.mixer, self.cross, self.feedforward = mixer, cross, feedforward
        self.around_mixer, self.around_feedforward = residual(), None if feedforward is None else residual()
        self.around_cross = None if cross is None else residual()

    def forward(self, x: Hidden, inputs: BlockInputs = NO_INPUTS) -> Hidden:
        self._check(inputs.context)

        def mix(y: Tensor) -> Tensor:
            out: Tensor = self.mixer(y, key_mask=inputs.key_mask, streams=inputs.streams, positions=inputs.positions)
            return out

        if self.parallel:
            assert self.feedforward is not None
            return self._both(x, mix, self.feedforward)
        x = self.around_mixer(x, mix)
        cross = self.cross
        if cross is not None and self.around_cross is not None:
            x = self.around_cross(x, lambda y: cross(y, inputs.context, key_mask=inputs.context_mask))
        transition, around = self.feedforward, self.around_feedforward
        if transition is None or around is None:
            return x
        if isinstance(transition, SeparableConvolution):
            out: Tensor = around(x, lambda y: transition(y, key_mask=inputs.key_mask))
        else:
            out = around(x, transition)
        return out

    def start(
        self,
        batch: int,
        inputs: BlockInputs = NO_INPUTS,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> BlockState:
        """The state before the first token; the context is projected once, here."""
        context, past = self.prepare(inputs), None
        if isinstance(self.feedforward, SeparableConvolution):
            past = self.feedforward.start(batch, dtype=dtype, device=device)
        return BlockState(self.mixer.start(batch, dtype=dtype, device=device), context, past)

    def prepare(self, inputs: BlockInputs) -> Context | None:
        """The keys and values of the context, which any number of calls can read."""
        context = inputs.context
        self._check(context)
        if self.cross is None or context is None:
            return None
        if isinstance(context, Context):
            return context
        return self.cross.prepare(context, inputs.context_mask)

    def extend(self, x: Hidden, state: BlockState, inputs: BlockInputs = NO_INPUTS) -> tuple[Hidden, BlockState]:
        """The next tokens, any number of them, and the state after them, with its `alignment` if `inputs.align`."""
        after, alignment, cross = state.mixer, None, self.cross
        transition, past = self.feedforward, state.transition

        def mix(y: Tensor) -> Tensor:
            nonlocal after
            out, after = self.mixer.extend(
                y, state.mixer, key_mask=inputs.key_mask, streams=inputs.streams, positions=inputs.positions
            )
            return out

        def read(y: Tensor) -> Tensor:
            nonlocal alignment
            assert cross is not None
            if inputs.align:
                alignment = cross.weights(y, state.context).mean(1)
            out: Tensor = cross(y, state.context)
            return out

        def change(y: Tensor) -> Tensor:
            nonlocal past
            assert transition is not None
            if isinstance(transition, SeparableConvolution):
                assert past is not None
                out, past = transition.extend(y, past, key_mask=inputs.key_mask)
            else:
                out = transition(y)
            return out

        if self.parallel:
            return self._both(x, mix, change), BlockState(after, state.context, past, alignment)
        x = self.around_mixer(x, mix)
        if self.around_cross is not None:
            x = self.around_cross(x, read)
        if self.around_feedforward is not None:
            x = self.around_feedforward(x, change)
        return x, BlockState(after, state.context, past, alignment)

    def _both(self, x: Hidden, mix: Callable[[Tensor], Tensor], change: Callable[[Tensor], Tensor]) -> Hidden:
        assert self.around_feedforward is not None
        return x + self.around_mixer.branch(x, mix) + self.around_feedforward.branch(x, change)

    def _check(self, context: Tensor | Context | None) -> None:
        if (context is None) != (self.cross is None):
            raise InvalidInput(
                "this block has cross-attention: give context"
                if context is None
                else "this block has no cross-attention: leave out context"
            )
