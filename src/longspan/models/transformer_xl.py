"""Transformer-XL (Dai et al. 2019): a language model with a memory of the previous segments.

    memory = None
    for ids in segments:                      # in order, one stream per batch row
        logits, memory = model(ids, memory)   # gradients stop at memory

There are no absolute positions, so the memory can be longer in evaluation than in training: `set_reach`.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan import config
from longspan.attention.base import check_some
from longspan.attention.mechanisms import relative
from longspan.attention.state import State, stored
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import CausalModel, Ids, Logits, Mask, Source
from longspan.nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from longspan.nn.dropout import Dropout
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.feedforward import GATED, PLAIN, FeedForward
from longspan.nn.loss import chunked_cross_entropy
from longspan.nn.memory_layer import LayerMemory, LayerState, MemoryLayer, Reach, forget, trim
from longspan.nn.norm import NORMS, build_norm
from longspan.nn.relative_multihead import RelativeAttention
from longspan.nn.residual import Residual
from longspan.shapes import Hidden


@dataclass(frozen=True, kw_only=True)
class MemoryOptions(config.Options):
    """Options that models with a memory share; the defaults are the 12-layer model for enwik8."""

    vocabulary: int = option(256, "number of token ids", low=1)
    width: int = option(512, "width of the hidden states", low=2)
    layers: int = option(12, "number of layers", low=1)
    heads: int = option(8, "attention heads", low=1)
    head_dim: int | None = option(None, "width of a head; width / heads unless given", low=1)
    hidden: int = option(2048, "inner width of the feed-forward layer", low=1)
    activation: str = option("relu", "of the feed-forward layer", choices=(*PLAIN, *GATED))
    norm_position: str = option(
        "post",
        "norm after each sub-layer, or before it, where the memory is normalised with the segment",
        choices=("post", "pre"),
        formerly="place",
    )
    norm: str = option("layer", "kind of norm", choices=tuple(NORMS))
    eps: float = option(1e-5, "added to the variance in norms", low=0)
    dropout: float = option(
        0.1, "on embeddings, distance encodings, the output of each sub-layer, and the output", low=0, high=0.999
    )
    attention_dropout: float = option(0.0, "on attention weights", low=0, high=0.999)
    hidden_dropout: float = option(0.1, "inside the feed-forward layer", low=0, high=0.999)
    segment: int = option(512, "tokens of a segment: gradients reach no further back", low=1)
    memory: int = option(512, "past inputs that each layer keeps", low=0)
    clamp: int | None = option(None, "distance beyond which all are encoded alike", low=1)
    untie: bool = option(False, "whether each layer has its own u and w (the released large models)")
    scale: bool = option(True, "whether embeddings are multiplied by the root of the width")
    tied: bool = option(True, "whether the output layer is the embedding")
    cutoffs: tuple[int, ...] | None = option(
        None, "first ids of the rarer bands: adaptive embedding and softmax", low=1
    )
    divisor: int = option(1, "how much narrower each band is than the one before", low=1)
    init_std: float = option(0.02, "standard deviation of initial weights", low=0)


@dataclass(frozen=True)
class SegmentMemory(State):
    """The memory of each layer after a text, without gradients."""

    layers: tuple[LayerMemory, ...]


@stored
@dataclass(frozen=True)
class Tables:
    """W_R r_t of each layer. It is the same for all batch rows, so states neither count nor select it."""

    rows: tuple[Tensor, ...]


@dataclass(frozen=True)
class SegmentState(State):
    """The state of decoding."""

    layers: tuple[LayerState, ...]
    length: int  # tokens read
    begun: int  # tokens of them in the current segment
    tables: Tables


class TransformerXL(CausalModel):
    """A language model that reads segments, and keeps the layers' inputs of previous segments.

    In `forward` and in `extend` the text is cut every `segment` tokens, counted from the memory on. A token reads its
    segment up to itself, and the last `memory` tokens before the segment. With `same_length` it reads the last `memory`
    tokens including itself, and the cuts make no difference.
    """

    name = "transformer_xl"
    paper = "Dai et al. 2019"

    @dataclass(frozen=True, kw_only=True)
    class Options(MemoryOptions):
        same_length: bool = option(False, "whether each token reads exactly `memory` tokens (the paper's evaluation)")

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.same_length and self.memory < 1:
                raise InvalidOption("with same_length a token reads `memory` tokens: give memory at least 1")

    options: MemoryOptions

    def __init__(self, options: MemoryOptions) -> None:
        super().__init__(options)
        self.vocabulary = options.vocabulary
        head_dim = self._head_dim()
        self.u, self.w = (nn.Parameter(torch.empty(options.heads, head_dim)) for _ in range(2))
        self.embedding: TokenEmbedding | AdaptiveEmbedding
        self.head: AdaptiveSoftmax | nn.Linear | None
        if options.cutoffs is None:
            rows = (options.vocabulary, options.width)
            self.embedding = TokenEmbedding(*rows, scale=options.scale, dropout=options.dropout)
            self.head = None if options.tied else nn.Linear(options.width, options.vocabulary)
            self.bias = nn.Parameter(torch.zeros(options.vocabulary)) if options.tied else None
        else:
            sizes = (options.vocabulary, options.width, options.cutoffs, options.divisor)
            self.embedding = AdaptiveEmbedding(*sizes, scale=options.scale, dropout=options.dropout)
            self.head = AdaptiveSoftmax(*sizes, tied=self.embedding if options.tied else None)
            self.bias = None
        self.layers = nn.ModuleList(self._layer(head_dim) for _ in range(options.layers))
        last = options.norm if options.norm_position == "pre" else "none"
        self.norm = build_norm(last, options.width, options.eps)
        self.dropout = Dropout(options.dropout)
        if options.untie:
            self.u = self.w = None  # type: ignore[assignment]  # the layers have their own
        self._initialise()

    # Sizes

    @property
    def left_padding(self) -> bool:  # type: ignore[override]
        """Only with `same_length`: otherwise a row that padding shifts is cut at other tokens."""
        return self.reach.same_length

    @property
    def reach(self) -> Reach:
        """How the text is cut, and how much of it is kept."""
        options = self.options
        furthest = options.memory + options.segment - 1
        same_length = getattr(options, "same_length", False)
        return Reach(segment=options.segment, memory=options.memory, same_length=same_length, furthest=furthest)

    def set_reach(
        self,
        *,
        segment: int | None = None,
        memory: int | None = None,
        clamp: int | None = None,
        same_length: bool | None = None,
    ) -> None:
        """Changes segment, memory or visibility. No weight depends on them; the paper evaluates with more memory."""
        given: dict[str, Any] = {"segment": segment, "memory": memory, "clamp": clamp, "same_length": same_length}
        self.options = replace(self.options, **{key: value for key, value in given.items() if value is not None})

    def _head_dim(self) -> int:
        options = self.options
        if options.head_dim is None and options.width % options.heads:
            raise InvalidOption(f"{options.heads} heads do not divide the width {options.width}; give head_dim")
        return options.head_dim or options.width // options.heads

    def _layer(self, head_dim: int) -> MemoryLayer:
        options = self.options
        shape = (options.heads, head_dim)
        u, w = [nn.Parameter(torch.empty(shape)) for _ in range(2)] if options.untie else (self.u, self.w)
        attention = RelativeAttention(
            options.width,
            options.heads,
            head_dim,
            u,
            w,
            dropout=options.attention_dropout,
            code_dropout=options.dropout,
        )
        feedforward = FeedForward(options.width, options.hidden, options.activation, dropout=options.hidden_dropout)
        return self._around(attention, feedforward)

    def _around(self, attention: RelativeAttention, feedforward: FeedForward) -> MemoryLayer:
        return MemoryLayer(attention, feedforward, residual=self._residual)

    def _residual(self) -> Residual:
        options = self.options
        return Residual(
            options.width,
            norm=options.norm,
            norm_position=options.norm_position,
            dropout=options.dropout,
            eps=options.eps,
        )

    @torch.no_grad()
    def _initialise(self) -> None:
        """All weights N(0, init_std), u and w among them, as released."""
        for module in self.modules():
            if isinstance(module, RelativeAttention):
                for bias in (module.u, module.w):
                    nn.init.normal_(bias, std=self.options.init_std)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=self.options.init_std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, TokenEmbedding):
                nn.init.normal_(module.weight, std=self.options.init_std)

    # Segments

    def begin(self, batch: int) -> SegmentMemory:
        """The memory before the first segment: empty, not zeros."""
        none = torch.zeros(batch, 0, self.options.width, dtype=self.dtype, device=self.device)
        return SegmentMemory(tuple(LayerMemory(none, none) for _ in self.layers))

    def forget(self, memory: SegmentMemory, rows: Bool[Tensor, " batch"]) -> SegmentMemory:
        """The memory after clearing the batch rows `rows`, where another document begins."""
        if rows.dtype != torch.bool or rows.shape != memory.layers[0].memory.shape[:1]:
            batch = len(memory.layers[0].memory)
            raise InvalidInput(f"rows must be boolean, one for each of the {batch} batch rows, not {tuple(rows.shape)}")
        return SegmentMemory(tuple(self._forget(held, rows) for held in memory.layers))

    def _forget(self, held: LayerMemory, rows: Tensor) -> LayerMemory:
        return forget(held, rows, empty=True)

    def forward(
        self, ids: Ids, memory: SegmentMemory | None = None, *, key_mask: Mask | None = None
    ) -> tuple[Logits, SegmentMemory]:
        """The logits after each token, and the memory after the text.

        The text may have any length: it is cut into segments, and gradients stop at the cuts.
        """
        x, memory = self.hidden(ids, memory, key_mask=key_mask)
        return self.logits(x), memory

    def text_logits(self, ids: Ids, *, key_mask: Mask | None = None) -> Logits:
        logits: Tensor = self(ids, key_mask=key_mask)[0]
        return logits

    def segment_logits(self, ids: Ids, memory: SegmentMemory | None = None) -> tuple[Logits, SegmentMemory]:
        logits, memory = self(ids, memory)
        return logits, memory

    def hidden(
        self, ids: Ids, memory: SegmentMemory | None = None, *, key_mask: Mask | None = None
    ) -> tuple[Hidden, SegmentMemory]:
        """The states that the output layer reads, and the memory after them."""
        self._check(ids, key_mask)
        x = self.embedding(ids)
        memory = self.begin(len(ids)) if memory is None else self._fit(memory, len(ids))
        reach, after = self.reach, []
        for layer, held in zip(self._all(), memory.layers):
            rows = self._distance_count(held, ids.shape[1])
            x, kept = layer(x, held, reach, layer.attention.distances(rows, self.options.clamp), key_mask)
            after.append(kept)
        return self.dropout(self.norm(x)), SegmentMemory(tuple(after))

    def logits(self, x: Hidden) -> Logits:
        """The output layer; log-probabilities where the softmax is adaptive."""
        if isinstance(self.head, AdaptiveSoftmax):
            return self.head.log_probabilities(x)
        if self.head is not None:
            logits: Tensor = self.head(x)
            return logits
        assert isinstance(self.embedding, TokenEmbedding) and self.bias is not None
        return self.embedding.logits(x) + self.bias

    def loss(self, x: Hidden, targets: Ids) -> Float[Tensor, ""]:
        """The mean cross-entropy of the states from `hidden`, without holding all logits at once."""
        if isinstance(self.head, AdaptiveSoftmax):
            return self.head.loss(x, targets)
        if self.head is not None:
            return chunked_cross_entropy(x, self.head.weight, targets, self.head.bias)
        assert isinstance(self.embedding, TokenEmbedding)
        return chunked_cross_entropy(x, self.embedding.weight, targets, self.bias)

    def _distance_count(self, held: LayerMemory, length: int) -> int:
        """The number of distances in a text of `length` tokens after the memory `held`."""
        reach, rows = self.reach, held.memory.shape[1]
        return reach.slots + min(rows + length, reach.memory + reach.segment)

    def _check(self, ids: Tensor, key_mask: Tensor | None) -> None:
        if ids.dim() == 2 and ids.shape[1] == 0:
            raise InvalidInput("there must be at least one token, not none")
        if ids.dim() == 2:
            check_some("ids", ids)
        if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != ids.shape):
            came = f"{tuple(key_mask.shape)} of {key_mask.dtype}"
            raise InvalidInput(f"key_mask must be boolean, one for each of the ids {tuple(ids.shape)}, not {came}")

    def _fit(self, memory: SegmentMemory, batch: int) -> SegmentMemory:
        """The memory, cut to what is kept now; an error if it is of another model or batch."""
        first = memory.layers[0].memory
        if len(memory.layers) != len(self.layers) or first.shape[2] != self.options.width:
            raise InvalidInput(
                f"the memory has {len(memory.layers)} layers of width {first.shape[2]}, and the model has "
                f"{len(self.layers)} of {self.options.width}; start with memory=None"
            )
        if len(first) != batch:
            raise InvalidInput(f"the memory has {len(first)} batch rows, and the ids {batch}; select its rows")
        return SegmentMemory(tuple(trim(held, self.reach) for held in memory.layers))

    # Step by step

    def start(self, batch: int, *, memory: SegmentMemory | None = None, **source: Any) -> SegmentState:
        """The state before the first token, or after the text that left `memory`."""
        state: SegmentState = super().start(batch, **source)
        return state if memory is None else self._state(self._fit(memory, batch))

    def initial_state(self, batch: int, source: Source | None = None) -> SegmentState:
        return self._state(self.begin(batch))

    def _state(self, memory: SegmentMemory) -> SegmentState:
        states = tuple(layer.start(held) for layer, held in zip(self._all(), memory.layers))
        return SegmentState(states, 0, 0, Tables(()))

    def extend_hidden(
        self, ids: Ids, state: SegmentState, key_mask: Mask | None = None, positions: Ids | None = None
    ) -> tuple[Hidden, SegmentState]:
        """As in `CausalModel`; `positions` have no effect, because only distances are encoded."""
        self._check(ids, key_mask)
        x, reach, after = self.embedding(ids), self.reach, []
        tables = self._tables(state, reach, ids.shape[1])
        for layer, before, rows in zip(self._all(), state.layers, tables.rows):
            x, kept = layer.extend(x, before, reach, rows, state.begun, key_mask)
            after.append(kept)
        begun = (state.begun + ids.shape[1]) % reach.segment
        state = SegmentState(tuple(after), state.length + ids.shape[1], begun, tables)
        return self.dropout(self.norm(x)), state

    def _tables(self, state: SegmentState, reach: Reach, new: int) -> Tables:
        """Enough distances for the next tokens; computed again with double the room if there are too few."""
        most = reach.memory + relative.ROWS if reach.same_length else reach.furthest + 1
        needed = min(most, self._needed(state, new))
        if state.tables.rows and state.tables.rows[0].shape[1] >= needed:
            return state.tables
        count = min(most, 2 * needed)
        return Tables(tuple(layer.attention.distances(count, self.options.clamp) for layer in self._all()))

    def _needed(self, state: SegmentState, new: int) -> int:
        return len(state.layers[0].k) + new

    def _all(self) -> list[MemoryLayer]:
        return [layer for layer in self.layers if isinstance(layer, MemoryLayer)]


__all__ = ["MemoryOptions", "SegmentMemory", "SegmentState", "TransformerXL"]
