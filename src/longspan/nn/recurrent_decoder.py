"""Recurrent decoders: without attention, of Bahdanau et al. 2015, and of Luong et al. 2015.

Each maps embedded tokens to the input of the output layer. They differ in when they read the source:

    plain      s_t = f(s_{t-1}, y_{t-1})         the source is in s_0 alone (Sutskever et al. 2014)
    Bahdanau   c_t from s_{t-1}                  s_t = f(s_{t-1}, y_{t-1}, c_t), maxout of s_{t-1}, y_{t-1} and c_t
    Luong      s_t = f(s_{t-1}, y_{t-1})         c_t from s_t, h~_t = tanh(W_c [c_t; s_t])
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from longspan.attention.state import State
from longspan.errors import InvalidInput, Unsupported
from longspan.nn.alignment import Alignment, AlignmentMemory
from longspan.nn.recurrent import Inputs, Recurrent, RecurrentState, check_mask
from longspan.shapes import Hidden, KeyMask


@dataclass(frozen=True)
class DecoderState(State):
    """The state of a decoder, and the source that it reads."""

    recurrent: RecurrentState
    memory: AlignmentMemory | None
    time: Tensor  # (batch): real tokens read so far
    feed: Tensor | None = None  # input feeding: h~ of the step before
    align: bool = False  # whether to keep `alignment`
    alignment: Tensor | None = None  # (batch, new tokens, source)

    @property
    def length(self) -> int:
        """The number of tokens read, padding included."""
        return self.recurrent.length


class RecurrentDecoder(nn.Module, ABC):
    """The base of the three decoders."""

    sequential = True  # step t reads the output of step t - 1, so steps cannot run in parallel

    def __init__(self, recurrent: Recurrent, alignment: Alignment | None, out_width: int) -> None:
        super().__init__()
        self.recurrent, self.alignment, self.out_width = recurrent, alignment, out_width

    def start(
        self, initial: RecurrentState, values: Hidden | None, key_mask: KeyMask | None, *, align: bool = False
    ) -> DecoderState:
        """The state before the first token, from the encoder's summary and its states."""
        if align and self.alignment is None:
            raise InvalidInput("a decoder without attention has no alignment; leave out align")
        memory = None if self.alignment is None or values is None else self.alignment.prepare(values, key_mask)
        time = torch.zeros(len(initial.hidden), dtype=torch.long, device=initial.hidden.device)
        return DecoderState(initial, memory, time, align=align)

    def forward(
        self, x: Inputs, state: DecoderState, *, key_mask: KeyMask | None = None, parallel: bool | None = None
    ) -> tuple[Hidden, DecoderState]:
        """The input of the output layer at each of the next tokens, and the state after them.

        `parallel` computes all steps at once (default: if possible).
        """
        if parallel and self.sequential:
            raise Unsupported(f"{self._why()}: its steps cannot run in parallel; leave out parallel")
        if x.shape[1] == 0:
            raise InvalidInput("x has no tokens; give at least one")
        if len(x) != len(state.time):
            raise InvalidInput(f"the state is of batch {len(state.time)}, and the new tokens of {len(x)}")
        if key_mask is not None:
            check_mask("key_mask", key_mask, x.shape[:2])
        if self.sequential or parallel is False:
            return self._loop(x, state, key_mask)
        return self.read(x, state, key_mask)

    def _loop(self, x: Tensor, state: DecoderState, key_mask: Tensor | None) -> tuple[Tensor, DecoderState]:
        outs, alignments = [], []
        for step in range(x.shape[1]):
            real = None if key_mask is None else key_mask[:, step : step + 1]
            out, state = self.read(x[:, step : step + 1], state, real)
            outs.append(out)
            if state.alignment is not None:
                alignments.append(state.alignment)
        return torch.cat(outs, 1), replace(state, alignment=torch.cat(alignments, 1) if alignments else None)

    @abstractmethod
    def read(self, x: Tensor, state: DecoderState, key_mask: Tensor | None) -> tuple[Tensor, DecoderState]:
        """The next token or, if the decoder is not sequential, tokens."""

    def _why(self) -> str:
        return "this decoder's step reads the output of the step before"

    def _attend(self, query: Tensor, state: DecoderState, key_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The context of each query, and its weights if `align`."""
        assert self.alignment is not None and state.memory is not None
        new = _count(query, key_mask)
        context, weights = self.alignment(query, state.memory, (state.time[:, None] + new - 1).clamp_min(0))
        return context, weights if state.align else None


def _count(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """The number of real tokens up to each position: (batch, new) or (1, new)."""
    return torch.arange(1, x.shape[1] + 1, device=x.device)[None] if key_mask is None else key_mask.cumsum(1)


class PlainDecoder(RecurrentDecoder):
    """A language model that starts from the encoder's final state."""

    sequential = False

    def __init__(self, recurrent: Recurrent) -> None:
        super().__init__(recurrent, None, recurrent.width)

    def read(self, x: Tensor, state: DecoderState, key_mask: Tensor | None) -> tuple[Tensor, DecoderState]:
        y, after = self.recurrent(x, state.recurrent, key_mask=key_mask)
        return y, replace(state, recurrent=after, time=state.time + _count(x, key_mask)[:, -1])


class BahdanauDecoder(RecurrentDecoder):
    """Attends with s_{t-1}; the context enters the update (sections 3.1 and A.2).

    `recurrent` reads [embedding; context]. The deep output is t~ = U_o s_{t-1} + V_o E y_{t-1} + C_o c_t, and
    maxout keeps the larger of each two neighbours: `maxout` features.
    """

    def __init__(self, recurrent: Recurrent, alignment: Alignment, embedding_width: int, maxout: int) -> None:
        super().__init__(recurrent, alignment, maxout)
        self.deep = nn.Linear(recurrent.width + embedding_width + alignment.key_width, 2 * maxout)

    def read(self, x: Tensor, state: DecoderState, key_mask: Tensor | None) -> tuple[Tensor, DecoderState]:
        query = state.recurrent.top[:, None]
        context, weights = self._attend(query, state, key_mask)
        _, after = self.recurrent(torch.cat([x, context], -1), state.recurrent, key_mask=key_mask)
        out = self.deep(torch.cat([query, x, context], -1)).unflatten(-1, (-1, 2)).amax(-1)
        time = state.time + _count(x, key_mask)[:, -1]
        return out, replace(state, recurrent=after, time=time, alignment=weights)


class LuongDecoder(RecurrentDecoder):
    """Attends with s_t of the same step (section 3.1).

    With `input_feeding`, `recurrent` reads h~_{t-1} concatenated to the next embedding (section 3.3).
    """

    def __init__(self, recurrent: Recurrent, alignment: Alignment, *, input_feeding: bool = True) -> None:
        super().__init__(recurrent, alignment, recurrent.width)
        self.sequential = input_feeding
        self.mix = nn.Linear(alignment.key_width + recurrent.width, recurrent.width, bias=False)  # W_c

    def start(
        self, initial: RecurrentState, values: Hidden | None, key_mask: KeyMask | None, *, align: bool = False
    ) -> DecoderState:
        state = super().start(initial, values, key_mask, align=align)
        return replace(state, feed=torch.zeros_like(initial.top)) if self.sequential else state

    def read(self, x: Tensor, state: DecoderState, key_mask: Tensor | None) -> tuple[Tensor, DecoderState]:
        if state.feed is not None:
            x = torch.cat([x, state.feed[:, None]], -1)
        y, after = self.recurrent(x, state.recurrent, key_mask=key_mask)
        context, weights = self._attend(y, state, key_mask)
        out = torch.tanh(self.mix(torch.cat([context, y], -1)))
        feed = state.feed
        if feed is not None:
            feed = out[:, 0] if key_mask is None else torch.where(key_mask, out[:, 0], feed)
        time = state.time + _count(x, key_mask)[:, -1]
        return out, replace(state, recurrent=after, time=time, feed=feed, alignment=weights)

    def _why(self) -> str:
        return "with input feeding a step reads the output of the step before"


__all__ = ["BahdanauDecoder", "DecoderState", "LuongDecoder", "PlainDecoder", "RecurrentDecoder"]
