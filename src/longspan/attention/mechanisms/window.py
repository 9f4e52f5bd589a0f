"""Sliding-window attention: each query reads the keys within a window around it, optionally dilated.

    query i reads key j if j = i + t·dilation with |t| ≤ window, and j ≤ i if causal; one softmax over them

Beltagy et al. 2020, section 3.1, without global tokens (see `longformer`). With `sinks` every query also reads the
first tokens of the text (Xiao et al. 2023, "attention sinks"), which the state keeps beside the window.

Their rotary positions are either those of the text, or, as in the paper's section 3.2, those of the cache: window keys
are as far away as in the text, and a query is never farther than sinks + window from the first token, however long the
text is. Queries for the first tokens are then rotated at min(position, sinks + window), the stream `sink_q`. While no
key has left the window, both are the same.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from longspan.attention.base import Cost, Extras, Shape, Stream, Supports, readable
from longspan.attention.kernels.multi_source_softmax import FEW, KeySource, joint
from longspan.attention.layouts import Band, FirstKeys, ceil_div
from longspan.attention.layouts.base import cap
from longspan.attention.map_factors import SoftmaxMap
from longspan.attention.parts import persistent_memory
from longspan.attention.parts.first_tokens import FirstTokens
from longspan.attention.parts.learned_sink import sink_logits, sink_softmax
from longspan.attention.parts.sliding_window import SlidingWindow, WindowState
from longspan.attention.state import State
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights


@dataclass(frozen=True)
class SinkWindowState(State):
    window: WindowState
    first: FirstTokens | None  # None before the first token
    length: int  # tokens read so far


class WindowAttention(SlidingWindow):
    name = "window"
    paper = "Beltagy et al. 2020 (sliding window)"
    survey_class: ClassVar[tuple[str, ...]] = ("FP",)
    order = "n·window"
    exponent = 1.0
    scaled_dot = True
    supports = Supports(
        causal=True, streaming=True, bias=True, dropout=True, grouped=True, left_padding=True, persistent=True
    )

    @dataclass(frozen=True, kw_only=True)
    class Options(SlidingWindow.Options):
        sinks: int = option(0, "first tokens of the text that every query reads too (causal only)", low=0)
        sink_positions: str = option(
            "original",
            "rotary positions of these tokens: those of the text, or of the cache, which no query is far from",
            choices=("original", "cache"),
        )
        learned_sink: bool = option(False, "whether a learned logit per head joins each softmax, without a value")
        scale: float | None = option(None, "factor on the scores; 1/sqrt(head_dim) unless given", above=0)
        softcap: float | None = option(None, "scores s become softcap·tanh(s/softcap); not by fused kernels", above=0)

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        if self.options.sinks and not causal:
            raise InvalidOption("option sinks keeps the first tokens of a causal window; give causal=True")
        if self.options.sinks and max(self.dilations) > 1:
            raise InvalidOption("option sinks needs a window without gaps: leave out dilation")
        if self.options.sink_positions == "cache":
            if not self.options.sinks:
                raise InvalidOption("option sink_positions is about sinks; give sinks=4, or leave it out")
            limit = self.options.sinks + self.options.window
            help = "the queries for the first tokens, rotated at most at the cache's last position; q unless given"
            self.streams = (Stream(name="sink_q", kind="queries", limit=limit, help=help, required=False),)
        self.scaled_dot = self.options.scale is None and self.options.softcap is None and not self.options.learned_sink
        if self.options.sinks or self.options.softcap is not None:
            self.supports = replace(self.supports, bias=False)
        self.sink_logits = sink_logits(shape) if self.options.learned_sink else None

    @property
    def plain(self) -> bool:
        """Whether it is a window and nothing else, which other kernels know too."""
        return self.scaled_dot and not self.options.sinks

    @property
    def score_scale(self) -> float:
        return float(self.shape.head_dim**-0.5) if self.options.scale is None else self.options.scale

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * self.score_scale
        may = readable(q.shape[2], k.shape[2], self.causal, extras.key_mask, q.device)
        keep = self.near(q.shape[2], q.device) & may
        if self.options.sinks:
            real = may.new_ones(1, k.shape[2]) if extras.key_mask is None else extras.key_mask
            first = real & (real.cumsum(1) <= self.options.sinks)
            far = first[:, None, None, :] & may & ~keep
            keep = keep | far
            if "sink_q" in extras.streams:
                other = torch.einsum("bhid,bhjd->bhij", extras.streams["sink_q"], k) * self.score_scale
                scores = torch.where(far, other, scores)
        scores = self.add_bias(scores, extras)
        scores, keep = persistent_memory.append_scores(self, scores, keep, q, self.score_scale)
        return sink_softmax(cap(scores, self.options.softcap), keep, self.sink_logits)

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        others: tuple[KeySource, ...] = ()
        if self.options.sinks:
            others = self._sinks(FirstTokens.of(k, v, self.options.sinks, extras.key_mask), 0, extras)
        return self.read_window(q, k, v, extras.key_mask, extras.bias, others=others)

    def _sinks(self, first: FirstTokens, start: int, extras: Extras) -> tuple[KeySource, ...]:
        """The first tokens as a source for queries from the position `start` on."""
        layout = FirstKeys(first.at, self.options.window, start)
        return (KeySource(layout, first.k, first.v, q=extras.streams.get("sink_q")),)

    def factorise(self, q: Queries, k: Keys, extras: Extras) -> SoftmaxMap | None:
        factors = super().factorise(q, k, extras)
        if factors is None or self.options.sinks or self.options.softcap is not None:
            return None
        return replace(factors, sink=self.sink_logits)

    def softmax_over(self, q: Tensor, sources: list[KeySource]) -> Tensor:
        return joint(
            q,
            sources,
            scale=self.score_scale,
            dropout=self.dropout if self.training else 0.0,
            sink=None if self.sink_logits is None else self.sink_logits.view(q.shape[1], -1),
            softcap=self.options.softcap,
        )

    def cost(self, queries: int, keys: int) -> Cost:
        heads, sinks = self.shape.heads, min(self.options.sinks, keys)
        if self.options.softcap is not None:
            return self._plain_cost(queries, keys)
        cost = super().cost(queries, keys)
        # The keys and values of the first tokens are views of all of them.
        return Cost(cost.flops + 4 * heads * queries * sinks * self.shape.fused_width, cost.floats)

    def _plain_cost(self, queries: int, keys: int) -> Cost:
        """Without the fused kernel: all scores of whole blocks, kept unless they are many."""
        heads, wide = self.shape.heads, self.shape.head_dim + self.shape.value_dim
        further = min(self.options.sinks, keys) + (0 if self.persistent is None else self.persistent.count)
        span = Band(self.options.window, 0 if self.causal else self.options.window).span
        blocks = sum(dilation * (ceil_div(ceil_div(queries, dilation), Band.block) + 1) for dilation in self.dilations)
        flops = 2 * (blocks * Band.block * span + heads * queries * further) * wide
        if heads * queries * (span + further) > FEW:  # recomputed in the backward pass
            return Cost(flops, heads * queries * (self.shape.value_dim + 2))
        # Of each block its queries, its weights, and copies of its keys and values; of each row its cap and softmax.
        kept = blocks * (Band.block * (span + self.shape.head_dim) + span * wide)
        return Cost(flops, kept + 2 * heads * queries * (span + further))

    def start(self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> State:
        self._refuse_streaming()
        window = self.start_window(batch)
        return SinkWindowState(window, None, 0) if self.options.sinks else window

    def extend_heads(
        self, q: Queries, k: Keys, v: Values, state: WindowState | SinkWindowState, extras: Extras
    ) -> tuple[Output, State]:
        if isinstance(state, WindowState):
            return self.extend_window(q, k, v, state, extras)
        first = FirstTokens.none_of(k, v, self.options.sinks) if state.first is None else state.first
        first = first.extend(k, v, extras.key_mask, state.length)
        out, window = self.extend_window(q, k, v, state.window, extras, self._sinks(first, state.length, extras))
        return out, SinkWindowState(window, first, state.length + k.shape[2])
