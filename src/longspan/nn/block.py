"""A Transformer block: mix positions, then change each of them, each inside a residual connection.

What is mixed, how, and where the norms stand is given, not chosen here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longspan.attention.state import State
from longspan.errors import InvalidInput
from longspan.nn.multihead import Context, MultiHead, MultiHeadState
from longspan.nn.positions import Positions
from longspan.nn.residual import Residual
from longspan.shapes import Hidden, KeyMask


@dataclass(frozen=True)
class BlockState(State):
    """The mixer's state, and the other sequence where there is one."""

    mixer: MultiHeadState
    context: Context | None


class Block(nn.Module):
    """`mixer`, then (in a decoder that reads another sequence) `cross`, then `feedforward`.

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
        return self.around_feedforward(x, self.feedforward)

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
        self._check(context)
        prepared = None if self.cross is None or context is None else self.cross.prepare(context, context_mask)
        return BlockState(self.mixer.start(batch, dtype=dtype, device=device), prepared)

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

        x = self.around_mixer(x, mix)
        if self.around_cross is not None:
            x = self.around_cross(x, read)
        return self.around_feedforward(x, self.feedforward), BlockState(after, state.context), alignment

    def _check(self, context: Tensor | Context | None) -> None:
        if (context is None) != (self.cross is None):
            need = "reads another sequence: give context" if context is None else "reads no other sequence than its own"
            raise InvalidInput(f"this block {need}")
