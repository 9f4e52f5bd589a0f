"""Recurrent models of one sequence: a language model (Zaremba et al. 2014) and a regressor for time series.

A text can be read in two ways. *Stateless blocks* are independent rows: `model(ids)`. *Stateful streams* carry the
detached state from one piece of a text to the next (truncated backpropagation through time):

>>> state = model.start(batch)
>>> for inputs, targets in unroll(fold(text, batch), 35):
...     logits, state = model.extend(inputs, state.detach())

Blocks give a higher perplexity, because the first tokens of each block lack context: report which one was used.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longspan import config
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import CausalModel, Ids, Logits, Mask, Source
from longspan.models.series_base import HorizonErrors, SeriesModel, SeriesOptions, calendar_features, cyclic
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.loss import IGNORED
from longspan.nn.recurrent import CELLS, Recurrent, RecurrentState, initialise_uniform
from longspan.shapes import Hidden


@dataclass(frozen=True, kw_only=True)
class RecurrentOptions(config.Options):
    """Recurrent layers; the defaults are the medium model of Zaremba et al. 2014."""

    width: int = option(650, "width of a layer", low=1)
    layers: int = option(2, "number of layers", low=1)
    cell: str = option("lstm", "kind of recurrent cell", choices=CELLS)
    forget_bias: float | None = option(None, "initial bias of an LSTM's forget gates; random unless given")
    learned_start: bool = option(False, "whether the state before the first token is learned; otherwise it is 0")
    dropout: float = option(0.5, "on every connection that is not recurrent", low=0, high=0.999)
    init_bound: float = option(0.05, "initial weights are uniform in ± this", low=0)


def _layers(options: RecurrentOptions, features: int) -> Recurrent:
    return Recurrent(
        features,
        options.width,
        cell=options.cell,
        layers=options.layers,
        dropout=options.dropout,
        forget_bias=options.forget_bias,
        learned_start=options.learned_start,
    )


class RecurrentLanguageModel(CausalModel):
    """The logits of the next token at every position; its state has one size for texts of any length.

    It ignores `positions`: recurrent layers know only the order.
    """

    name = "recurrent"
    paper = "Zaremba et al. 2014"
    left_padding = True

    @dataclass(frozen=True, kw_only=True)
    class Options(RecurrentOptions):
        vocabulary: int = option(256, "number of token ids", low=1)
        padding: int | None = option(None, "the id of padding, whose embedding is zero", low=0)
        embedding: int | None = option(None, "width of the embedding; `width` unless given", low=1)
        tied: bool = option(False, "whether the output layer is the embedding, which must then be as wide as a layer")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        embedding = options.width if options.embedding is None else options.embedding
        if options.tied and embedding != options.width:
            raise InvalidOption(f"tied needs an embedding as wide as the layers: {embedding} is not {options.width}")
        self.vocabulary = options.vocabulary
        self.embedding = TokenEmbedding(options.vocabulary, embedding, scale=False, padding=options.padding)
        self.recurrent = _layers(options, embedding)
        self.head = None if options.tied else nn.Linear(options.width, options.vocabulary)
        initialise_uniform(self, options.init_bound)

    def forward(self, ids: Ids, *, key_mask: Mask | None = None) -> Logits:
        return self.logits(self.hidden(ids, key_mask=key_mask))

    def hidden(self, ids: Ids, *, key_mask: Mask | None = None) -> Hidden:
        """The states that the output layer reads."""
        states: Tensor = self.recurrent(self.embedding(ids), key_mask=key_mask)[0]
        return states

    def logits(self, x: Hidden) -> Logits:
        """The output layer."""
        return self.embedding.logits(x) if self.head is None else self.head(x)

    def initial_state(self, batch: int, source: Source | None = None) -> RecurrentState:
        return self.recurrent.start(batch)

    def extend_hidden(
        self, ids: Ids, state: RecurrentState, key_mask: Mask | None = None, positions: Ids | None = None
    ) -> tuple[Hidden, RecurrentState]:
        x, state = self.recurrent(self.embedding(ids), state, key_mask=key_mask)
        return x, state


def fold(text: Tensor, batch: int) -> Ids:
    """A text cut into `batch` streams of equal length; the remainder at its end is dropped."""
    length = len(text) // batch
    if text.dim() != 1 or length < 2:
        raise InvalidInput(
            f"{batch} streams of at least 2 tokens need a text of {2 * batch} tokens, not {tuple(text.shape)}"
        )
    return text[: batch * length].view(batch, length)


def unroll(streams: Ids, steps: int) -> Iterator[tuple[Ids, Ids]]:
    """Inputs and targets, which are the inputs shifted by one, `steps` at a time; the last piece may be shorter."""
    if steps < 1:
        raise InvalidInput(f"steps must be at least 1, not {steps}")
    for begin in range(0, streams.shape[1] - 1, steps):
        end = min(begin + steps, streams.shape[1] - 1)
        yield streams[:, begin:end], streams[:, begin + 1 : end + 1]


@torch.no_grad()
def text_loss(model: CausalModel, streams: Ids, *, steps: int = 35, stateful: bool = True) -> float:
    """The mean negative log-likelihood of each token but the first; its exponential is the perplexity per token.

    If `stateful`, it does not depend on `steps`. Otherwise each piece of `steps` tokens is read without context.
    """
    training, total, count = model.training, 0.0, 0
    model.eval()
    try:
        state = model.start(len(streams))
        for inputs, targets in unroll(streams, steps):
            logits, state = model.extend(inputs, state if stateful else model.start(len(streams)))
            total += cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
            count += int((targets != IGNORED).sum())
    finally:
        model.train(training)
    return total / max(count, 1)


class SeriesRegressor(SeriesModel):
    """Recurrent layers that read a series and what is known of each time (see `SeriesModel`)."""

    name = "regressor"
    paper = "Elman 1990"

    @dataclass(frozen=True, kw_only=True)
    class Options(SeriesOptions, RecurrentOptions):
        width: int = option(64, "width of a layer", low=1)
        layers: int = option(1, "number of layers", low=1)
        dropout: float = option(0.0, "on every connection that is not recurrent", low=0, high=0.999)
        init_bound: float = option(0.1, "initial weights are uniform in ± this", low=0)

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.recurrent = _layers(options, options.values + options.known)
        self.head = nn.Linear(options.width, options.values)
        self._build_scale()
        initialise_uniform(self, options.init_bound)

    def states(self, x: Tensor, *, key_mask: Mask | None = None) -> Tensor:
        states: Tensor = self.recurrent(x, key_mask=key_mask)[0]
        return states

    def reader(self, batch: int) -> Callable[[Tensor], Tensor]:
        state = self.recurrent.start(batch)

        def extend(x: Tensor) -> Tensor:
            nonlocal state
            states: Tensor
            states, state = self.recurrent(x, state)
            return states

        return extend


__all__ = [
    "HorizonErrors",
    "RecurrentLanguageModel",
    "RecurrentOptions",
    "SeriesRegressor",
    "calendar_features",
    "cyclic",
    "fold",
    "text_loss",
    "unroll",
]
