"""A causal Transformer of numeric series, with any attention in each layer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.config import AttentionConfig
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Mask
from longspan.models.body import BodyOptions, absolute_position, build_stack, initialise, mechanisms
from longspan.models.series_base import SeriesModel, SeriesOptions
from longspan.models.text import DENSE
from longspan.nn.embedding import FeatureEmbedding
from longspan.nn.inputs import BlockInputs


class SeriesTransformer(SeriesModel):
    """A causal Transformer that reads a vector of numbers at each place, with any attention in each layer.

    The tokens' embedding and output layer of a decoder are linear layers here, from and to numbers.
    """

    name = "series_transformer"
    paper = "Vaswani et al. 2017"

    @dataclass(frozen=True, kw_only=True)
    class Options(SeriesOptions, BodyOptions):
        width: int = option(64, "width of the hidden states", low=1)
        layers: int = option(2, "number of blocks", low=1)
        heads: int = option(4, "attention heads", low=1)
        hidden: int = option(128, "inner width of the feed-forward layer", low=1)
        attention: tuple[AttentionConfig, ...] = option(DENSE, "attention of each layer, repeated from the bottom up")

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.columns is None or self.max_length is None:
                return
            needed = self.columns.window + self.columns.horizon - 1
            if needed > self.max_length:
                raise InvalidOption(f"window + horizon - 1 is {needed}, but max_length is {self.max_length}")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.segments or options.embedding_width is not None:
            raise InvalidOption("a model of numbers has no tables: leave out segments and embedding_width")
        self.embedding = FeatureEmbedding(
            options.values + options.known,
            options.width,
            position=absolute_position(options),
            dropout=options.dropout if options.embedding_dropout is None else options.embedding_dropout,
        )
        self.stack = build_stack(options, options.attention, stack_name="series", causal=True)
        self.head = nn.Linear(self.stack.out_width, options.values)
        self._build_scale()
        initialise(self, options)

    def states(self, x: Tensor, *, key_mask: Mask | None = None) -> Tensor:
        longest = self.options.max_length
        if longest is not None and x.shape[1] > longest:
            raise InvalidInput(f"this {self.name} holds at most {longest} time steps, and {x.shape[1]} were given")
        states: Tensor = self.stack(self.embedding(x), BlockInputs(key_mask=key_mask))
        return states

    def reader(self, batch: int) -> Callable[[Tensor], Tensor]:
        if all(mechanism.supports.streaming for mechanism in mechanisms(self)):
            state: Any = self.stack.start(batch, dtype=self.dtype, device=self.device)

            def extend(x: Tensor) -> Tensor:
                nonlocal state
                out, state = self.stack.extend(self.embedding(x, start=state.length), state)
                return out

            return extend
        seen: list[Tensor] = []

        def again(x: Tensor) -> Tensor:
            seen.append(x)
            return self.states(torch.cat(seen, 1))

        return again


__all__ = ["SeriesTransformer"]
