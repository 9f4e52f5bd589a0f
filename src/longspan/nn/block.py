"""A Transformer block: mix positions, then change each of them, each inside a residual connection.

What is mixed, how, and where the norms stand is given, not chosen here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longspan.attention.state import State
from longspan.errors import InvalidInput
from longspan.nn.convolution import ConvolutionState, SeparableConvolution
from longspan.nn.multihead import Context, MultiHead, MultiHeadState
from longspan.nn.positions import Positions
from longspan.nn.residual import Residual
from longspan.shapes import Hidden, KeyMask


@dataclass(frozen=True)
class BlockState(State):
    """The mixer's state, the other sequence where there is one, and the past that a convolution looks back at."""

    mixer: MultiHeadState
    context: Context | None
    transition: ConvolutionState | None = None


class Block(nn.Module):
    """`mixer`, then (in a decoder that reads another sequence) `cross`, then `feedforward`.

    The last may be a `SeparableConvolution`, which sees the neighbours as well.

    Each sub-layer has a residual connection of its own; `residual` makes them, so that one call says norm, place and
    dropout of all:

    >>> block = Block(mixer, FeedForward(512, 2048), residual=lambda: Residual(512, place="pre", dropout=0.1))
    """

    def __init__(
        self,
        mixer: MultiHead,
        feedforward: nn.Module,
        *,
        residual: Callable[[], Residual],
        cross: MultiHead | None = None,
    ) -> None:
        super().__init__()
        self.mixer, self.cross, self.feedforward = mixer, cross, feedforward
        self.around_mixer, self.around_feedforward = residual(), residual()
        self.around_cross = None if cross is None else residual()

    def forward(
        self,
        x: Hidden,
        context: Hidden | Context | None = None,
        *,
        key_mask: KeyMask | None = None,
        context_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> Hidden:
        self._check(context)
        x = self.around_mixer(x, lambda y: self.mixer(y, key_mask=key_mask, streams=streams, positions=positions))
        cross = self.cross
        if cross is not None and self.around_cross is not None:
            x = self.around_cross(x, lambda y: cross(y, context, key_mask=context_mask))
        transition = self.feedforward
        if isinstance(transition, SeparableConvolution):
            return self.around_feedforward(x, lambda y: transition(y, key_mask=key_mask))
        return self.around_feedforward(x, transition)

    def start(
        self,
        batch: int,
        context: Hidden | None = None,
        *,
        context_mask: KeyMask | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> BlockState:
        """The state before the first token; another sequence is projected once, here."""
        prepared, past = self.prepare(context, context_mask), None
        if isinstance(self.feedforward, SeparableConvolution):
            past = self.feedforward.start(batch, dtype=dtype, device=device)
        return BlockState(self.mixer.start(batch, dtype=dtype, device=device), prepared, past)

    def prepare(self, context: Hidden | None, context_mask: KeyMask | None = None) -> Context | None:
        """The other sequence, projected for any number of calls."""
        self._check(context)
        return None if self.cross is None or context is None else self.cross.prepare(context, context_mask)

    def extend(
        self,
        x: Hidden,
        state: BlockState,
        *,
        key_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> tuple[Hidden, BlockState]:
        """The next tokens, any number of them, and the state after them."""
        x, after, _ = self.step(x, state, key_mask=key_mask, streams=streams, positions=positions)
        return x, after

    def step(
        self,
        x: Hidden,
        state: BlockState,
        *,
        key_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
        align: bool = False,
    ) -> tuple[Hidden, BlockState, Tensor | None]:
        """`extend`, and with `align` what each token was aligned with: (batch, new, source), mean over the heads."""
        after, alignment, cross = state.mixer, None, self.cross
        transition, past = self.feedforward, state.transition

        def mix(y: Tensor) -> Tensor:
            nonlocal after
            out, after = self.mixer.extend(y, state.mixer, key_mask=key_mask, streams=streams, positions=positions)
            return out

        def read(y: Tensor) -> Tensor:
            nonlocal alignment
            assert cross is not None
            if align:
                alignment = cross.weights(y, state.context).mean(1)
            return cross(y, state.context)

        def change(y: Tensor) -> Tensor:
            nonlocal past
            if not isinstance(transition, SeparableConvolution):
                return transition(y)
            assert past is not None
            out, past = transition.extend(y, past, key_mask=key_mask)
            return out

        x = self.around_mixer(x, mix)
        if self.around_cross is not None:
            x = self.around_cross(x, read)
        x = self.around_feedforward(x, change)
        return x, BlockState(after, state.context, past), alignment

    def _check(self, context: Tensor | Context | None) -> None:
        if (context is None) != (self.cross is None):
            need = "reads another sequence: give context" if context is None else "reads no other sequence than its own"
            raise InvalidInput(f"this block {need}")
