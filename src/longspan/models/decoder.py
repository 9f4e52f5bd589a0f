"""The decoder of the Transformer by itself: GPT, Llama and similar models, with any attention in each layer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longspan.config import option
from longspan.errors import InvalidOption, Unsupported
from longspan.models.base import CausalTextHeads, Ids, Logits, Mask, Source, Streams, TextStates
from longspan.models.body import build_stack, embedding, initialise, mechanisms, table_width
from longspan.models.headed import Headed, build_heads
from longspan.models.text import TextOptions
from longspan.nn.feedforward import PLAIN
from longspan.nn.heads import Head, Masked
from longspan.nn.inputs import BlockInputs
from longspan.nn.linear import Linear
from longspan.nn.recorder import recorded_states
from longspan.nn.rotary import Rotary
from longspan.shapes import Hidden


class Decoder(Headed, CausalTextHeads, TextStates):
    """A language model: the logits of the next token after every token (GPT, Llama and others)."""

    name = "decoder"
    paper = "Radford et al. 2018"
    _embed, _stack = staticmethod(embedding), staticmethod(build_stack)

    @dataclass(frozen=True, kw_only=True)
    class Options(TextOptions):
        tasks: tuple[Head, ...] | None = option(None, "tasks that it has heads for, besides the next token")
        tied: bool = option(True, "whether the output layer is the embedding")
        head_bias: bool = option(False, "whether the output layer has a bias (Reformer)")
        head_activation: str | None = option(
            None, "of a layer, with a norm, before the output layer; none: no such layer (BERT's)", choices=tuple(PLAIN)
        )
        logit_cap: float | None = option(None, "logits x become logit_cap·tanh(x/logit_cap) (Gemma 2)", above=0)
        zero_output: bool = option(False, "whether an output layer that is not tied starts at 0 (Child et al. 2019)")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.vocabulary, self.max_length = options.vocabulary, options.max_length
        self.embedding = self._embed(options, options.vocabulary, options.padding)
        self.stack = self._stack(options, options.attention, stack_name="decoder", causal=True)
        plain = options.head_activation is None
        narrow = options.narrow_tokens and table_width(options) != self.stack.out_width
        if narrow and not plain:
            raise InvalidOption("narrow_tokens is for an output layer without head_activation; leave out one of them")
        self.narrow = Linear(self.stack.out_width, table_width(options), bias=False) if narrow else None
        self.out_width = table_width(options) if narrow else self.stack.out_width  # of the states
        if options.tied and plain and self.out_width != table_width(options):
            raise InvalidOption(
                f"the embedding is {table_width(options)} wide and the states {self.stack.out_width}: they "
                "cannot be tied; give tied=False, or merge='mean'"
            )
        if options.tied and plain and options.head_bias:
            raise InvalidOption("a tied output layer has no bias; give tied=False, or leave out head_bias")
        self.head = self._build_head(options)
        self.heads = build_heads(options, self.out_width, options.vocabulary)
        self.left_padding = all(mechanism.supports.left_padding for mechanism in mechanisms(self))
        position = self.embedding.position
        self.fixed_length = (position is not None and position.fixed_length) or any(
            mechanism.fixed_length for mechanism in mechanisms(self)
        )
        self.switch_length = _switch_length(self)
        initialise(self, options)
        if self.head is not None and self.head.weight is not None and options.zero_output:
            nn.init.zeros_(self.head.weight)

    def _build_head(self, options: Options) -> Linear | Masked | None:
        """The output layer; None if it is the embedding alone."""
        width = self.out_width
        if options.head_activation is None:
            return None if options.tied else Linear(width, options.vocabulary, bias=options.head_bias)
        head = Head(task="masked", activation=options.head_activation, tied=options.tied, bias=options.head_bias)
        inner, norm, eps = table_width(options), options.norm, options.eps
        return Masked(head, width, vocabulary=options.vocabulary, table_width=inner, norm=norm, eps=eps)

    def forward(
        self, ids: Ids, *, key_mask: Mask | None = None, positions: Ids | None = None, streams: Streams | None = None
    ) -> Logits:
        return self.logits(self.hidden(ids, key_mask=key_mask, positions=positions, streams=streams))

    def hidden(
        self,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        segments: Ids | None = None,
        streams: Streams | None = None,
    ) -> Hidden:
        """The states that the output layer reads."""
        self._check_room(ids.shape[1])
        x = self.embedding(ids, positions=positions, segments=segments)
        states: Tensor = self.stack(x, BlockInputs(key_mask=key_mask, streams=streams, positions=positions))
        return states if self.narrow is None else self.narrow(states)

    def text_states(self, ids: Ids, *, key_mask: Mask | None = None) -> Hidden:
        return self.hidden(ids, key_mask=key_mask)

    def layer_states(self, ids: Ids, *, key_mask: Mask | None = None) -> list[Hidden]:
        return recorded_states(self.stack, lambda: self.hidden(ids, key_mask=key_mask))

    @property
    def table(self) -> Tensor:
        return self.embedding.weight

    def outputs(
        self,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        segments: Ids | None = None,
        streams: Streams | None = None,
        chosen: Mask | None = None,
    ) -> dict[str, Tensor]:
        """The output of each head, by task."""
        return self.read_from(
            self.stack,
            lambda: self.hidden(ids, key_mask=key_mask, positions=positions, segments=segments, streams=streams),
            key_mask,
            chosen,
        )

    def outputs_and_logits(
        self, ids: Ids, *, key_mask: Mask | None = None, segments: Ids | None = None
    ) -> tuple[dict[str, Tensor], Logits]:
        x = self.hidden(ids, key_mask=key_mask, segments=segments)
        return self.read(x, key_mask), self.logits(x)

    def logits(self, x: Hidden) -> Logits:
        """The output layer."""
        logits: Tensor
        if self.head is None:
            logits = self.embedding.logits(x)
        else:
            logits = self.head(x, self.table) if isinstance(self.head, Masked) else self.head(x)
        limit = self.options.logit_cap
        return logits if limit is None else limit * torch.tanh(logits / limit)

    def initial_state(self, batch: int, source: Source | None = None) -> Any:
        return self.stack.start(batch, dtype=self.dtype, device=self.device)

    def extend_hidden(
        self, ids: Ids, state: Any, key_mask: Mask | None = None, positions: Ids | None = None
    ) -> tuple[Hidden, Any]:
        limit = self.switch_length
        if limit is not None and 0 < state.length <= limit < state.length + ids.shape[1]:
            raise Unsupported(
                f"texts above {limit} tokens are rotated otherwise from their first token on (longrope): read the "
                f"whole text again instead of continuing after {state.length} tokens; `generate` does so"
            )
        start = state.length if positions is None else 0
        x = self.embedding(ids, start=start, positions=positions)
        states, state = self.stack.extend(x, state, BlockInputs(key_mask=key_mask, positions=positions))
        return states if self.narrow is None else self.narrow(states), state


def _switch_length(model: nn.Module) -> int | None:
    """The length above which rotary positions differ for all tokens of a text; None without such positions."""
    lengths = [module.switch_length for module in model.modules() if isinstance(module, Rotary)]
    return min((length for length in lengths if length is not None), default=None)


__all__ = ["Decoder"]
