"""Recurrent models of one sequence: a language model (Zaremba et al. 2014) and a regressor of series.

Texts are read in one of two ways. *Stateless blocks* are rows by themselves: `model(ids)`. *Stateful streams* carry the
state from one piece of a text to the next, cut off from its history (truncated backpropagation through time):

>>> state = model.start(batch)
>>> for inputs, targets in unroll(fold(text, batch), 35):
...     logits, state = model.extend(inputs, state.detach())

A perplexity from blocks is higher, as the first tokens of each block lack their context: say which one it is.
"""

import calendar
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from longspan import config
from longspan.attention.base import check_some
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import CausalModel, Ids, Logits, Mask, Model, Streams
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.loss import IGNORED
from longspan.nn.recurrent import CELLS, Recurrent, RecurrentState, initialise_uniform
from longspan.shapes import Hidden

Series = Float[Tensor, "batch length values"]
Known = Float[Tensor, "batch places known"]
Ahead = Float[Tensor, "batch horizon values"]


@dataclass(frozen=True, kw_only=True)
class RecurrentOptions(config.Options):
    """Recurrent layers; the defaults are the medium model of Zaremba et al. 2014."""

    width: int = option(650, "width of a layer", low=1)
    layers: int = option(2, "number of layers", low=1)
    cell: str = option("lstm", "kind of recurrent cell", choices=CELLS)
    forget_bias: float | None = option(None, "where the forget gates of an LSTM start; as drawn unless given")
    learned_start: bool = option(False, "whether the state before the first token is learned; else it is 0")
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
    """The logits of the next token at every place; its state has one size however long the text is.

    `positions` are not read: recurrent layers know order and nothing else of place.
    """

    name = "recurrent"
    paper = "Zaremba et al. 2014"
    left_padding = True

    @dataclass(frozen=True, kw_only=True)
    class Options(RecurrentOptions):
        vocabulary: int = option(256, "number of token ids", low=1)
        padding: int | None = option(None, "the id of padding, whose embedding is zero", low=0)
        embedding: int | None = option(None, "width of the embedding; `width` unless given", low=1)
        tied: bool = option(False, "whether the output layer is the embedding; their widths must then be equal")

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

    def start(
        self,
        batch: int,
        *,
        source: Ids | None = None,
        source_mask: Mask | None = None,
        source_streams: Streams | None = None,
        align: bool = False,
    ) -> RecurrentState:
        self._refuse_source(source, align)
        return self.recurrent.start(batch)

    def extend(
        self,
        ids: Ids,
        state: RecurrentState,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        last: bool = False,
    ) -> tuple[Logits, RecurrentState]:
        x, state = self.recurrent(self.embedding(ids), state, key_mask=key_mask)
        return self.logits(x[:, -1:] if last else x), state


def fold(text: Tensor, batch: int) -> Ids:
    """A text in `batch` streams of equal length, each one piece of it; what is left over at the end is dropped."""
    length = len(text) // batch
    if text.dim() != 1 or length < 2:
        raise InvalidInput(f"{batch} streams of 2 tokens at least need a text of {2 * batch}, not {tuple(text.shape)}")
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

    Stateful, it does not depend on `steps`. Otherwise each piece of `steps` is read as if nothing came before it.
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


class HorizonErrors(NamedTuple):
    """Mean squared errors at 1, 2, … steps ahead."""

    teacher_forced: Float[Tensor, " horizon"]  # each value from the true ones before it
    free_running: Float[Tensor, " horizon"]  # each value from the model's own


class SeriesRegressor(Model):
    """The next values of a series, from those so far and from what is known of each time (the calendar, say).

    Inputs and predictions are in the units of the data; inside, both are scaled by the mean and deviation of the
    training data, which `fit_scale` measures and the model keeps. `known` speaks of the time of the input, not of the
    predicted value.
    """

    name = "regressor"
    paper = "Elman 1990"

    @dataclass(frozen=True, kw_only=True)
    class Options(RecurrentOptions):
        width: int = option(64, "width of a layer", low=1)
        layers: int = option(1, "number of layers", low=1)
        dropout: float = option(0.0, "on every connection that is not recurrent", low=0, high=0.999)
        init_bound: float = option(0.1, "initial weights are uniform in ± this", low=0)
        values: int = option(1, "how many numbers a time has that are predicted", low=1)
        known: int = option(0, "how many more are known of each time beforehand", low=0)

    options: Options

    mean: Tensor
    deviation: Tensor

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        inputs = options.values + options.known
        self.recurrent = _layers(options, inputs)
        self.head = nn.Linear(options.width, options.values)
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("deviation", torch.ones(inputs))
        initialise_uniform(self, options.init_bound)

    @torch.no_grad()
    def fit_scale(self, series: Series, known: Known | None = None, *, key_mask: Mask | None = None) -> None:
        """Takes the scale from training data (never from what it is tested on); a constant is only centred."""
        rows = self._inputs(series, known).flatten(0, 1) if key_mask is None else self._inputs(series, known)[key_mask]
        deviation = rows.std(0, correction=0)
        self.mean.copy_(rows.mean(0))
        varies = deviation > 1e-6 * rows.abs().amax(0)  # more than rounding
        self.deviation.copy_(torch.where(varies, deviation, torch.ones_like(deviation)))

    def forward(self, series: Series, known: Known | None = None, *, key_mask: Mask | None = None) -> Series:
        """One step ahead of every place: the last row is the first value that is not in the series."""
        x, _ = self.recurrent(self._scale(self._inputs(series, known)), key_mask=key_mask)
        return self._unscale(self.head(x))

    def loss(self, series: Series, known: Known | None = None, *, key_mask: Mask | None = None) -> Tensor:
        """Mean squared error one step ahead, in scaled units, over the targets that are real."""
        if series.dim() == 3 and series.shape[1] < 2:
            raise InvalidInput(f"a next value needs a series of 2 at least, not {series.shape[1]}")
        guess: Tensor = self(series[:, :-1], None if known is None else known[:, :-1], key_mask=_but_last(key_mask))
        squares = ((guess - series[:, 1:]) / self.deviation[: self.options.values]) ** 2
        if key_mask is None:
            return squares.mean()
        real = key_mask[:, 1:] & key_mask[:, :-1].cumsum(1).bool()  # something must have been read before it
        return squares[real].sum() / (real.sum() * self.options.values).clamp_min(1)

    @torch.no_grad()
    def forecast(self, series: Series, horizon: int, known: Known | None = None) -> Ahead:
        """The next `horizon` values, free-running: each is made from the model's own before it.

        `known` speaks of the series and of the times that are read behind it: length + horizon - 1 places.
        """
        length, options = series.shape[1], self.options
        if horizon < 1:
            raise InvalidInput(f"horizon must be at least 1, not {horizon}")
        places = length + horizon - 1
        if options.known and (known is None or known.shape[1] != places):
            came = "none" if known is None else known.shape[1]
            raise InvalidInput(f"known must have length + horizon - 1 = {places} places, not {came}")
        past = None if known is None else known[:, :length]
        x, state = self.recurrent(self._scale(self._inputs(series, past)))
        made = [self._unscale(self.head(x[:, -1:]))]
        for place in range(length, places):
            here = None if known is None else known[:, place : place + 1]
            x, state = self.recurrent(self._scale(self._inputs(made[-1], here)), state)
            made.append(self._unscale(self.head(x)))
        return torch.cat(made, 1)

    @torch.no_grad()
    def horizon_errors(self, series: Series, context: int, known: Known | None = None) -> HorizonErrors:
        """How errors grow when predictions are read back: everything behind the first `context` values is predicted."""
        horizon = series.shape[1] - context
        if context < 1 or horizon < 1:
            raise InvalidInput(f"context must leave something to predict of {series.shape[1]} values, not be {context}")
        read = None if known is None else known[:, :-1]
        truth = series[:, context:]
        forced = self(series[:, :-1], read)[:, context - 1 :]
        free = self.forecast(series[:, :context], horizon, read)
        return HorizonErrors(*(mse_loss(made, truth, reduction="none").mean((0, 2)) for made in (forced, free)))

    def _inputs(self, series: Tensor, known: Tensor | None) -> Tensor:
        options = self.options
        if series.dim() != 3 or series.shape[-1] != options.values:
            raise InvalidInput(f"a series must be (batch, length, values {options.values}), not {tuple(series.shape)}")
        check_some("a series", series)
        if not options.known and known is None:
            return series
        wanted = (*series.shape[:2], options.known)
        if known is None or tuple(known.shape) != wanted:
            came = "none" if known is None else tuple(known.shape)
            raise InvalidInput(f"known must be (batch, length, known) {wanted}, not {came}")
        return torch.cat([series, known], -1)

    def _scale(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation

    def _unscale(self, y: Tensor) -> Tensor:
        return y * self.deviation[: self.options.values] + self.mean[: self.options.values]


def _but_last(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask[:, :-1]


def cyclic(phase: Float[Tensor, "*places"]) -> Float[Tensor, "*places 2"]:
    """A share of a cycle as sine and cosine, so that its end is next to its beginning."""
    angle = 2 * math.pi * phase
    return torch.stack([angle.sin(), angle.cos()], -1)


def calendar_features(dates: Sequence[date]) -> Float[Tensor, "places 7"]:
    """Day of the month, month and weekday, each as sine and cosine, and the year as it is: `known` of a regressor."""
    days = [(day.day - 1) / calendar.monthrange(day.year, day.month)[1] for day in dates]
    phases = [days, [(day.month - 1) / 12 for day in dates], [day.weekday() / 7 for day in dates]]
    years = torch.tensor([float(day.year) for day in dates])[:, None]
    return torch.cat([*(cyclic(torch.tensor(phase)) for phase in phases), years], -1)


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
