"""Recurrent models of one sequence: a language model (Zaremba et al. 2014) and a regressor for time series.

A text can be read in two ways. *Stateless blocks* are independent rows: `model(ids)`. *Stateful streams* carry the
detached state from one piece of a text to the next (truncated backpropagation through time):

>>> state = model.start(batch)
>>> for inputs, targets in unroll(fold(text, batch), 35):
...     logits, state = model.extend(inputs, state.detach())

Blocks give a higher perplexity, because the first tokens of each block lack context: report which one was used.
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
from longspan.models.base import CausalModel, Ids, Logits, Mask, Model, Source
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.loss import IGNORED
from longspan.nn.recurrent import CELLS, Recurrent, RecurrentState, initialise_uniform
from longspan.shapes import Hidden

Series = Float[Tensor, "batch length values"]
Known = Float[Tensor, "batch positions known"]
Ahead = Float[Tensor, "batch horizon values"]


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


class HorizonErrors(NamedTuple):
    """Mean squared errors at 1, 2, … steps ahead."""

    teacher_forced: Float[Tensor, " horizon"]  # each value is predicted from the true values before it
    free_running: Float[Tensor, " horizon"]  # each value is predicted from the model's predictions


class SeriesRegressor(Model):
    """Predicts the next values of a time series from past values and known features of each time step (the calendar).

    Inputs and predictions are in the units of the data. Inside, both are scaled by the mean and standard deviation of
    the training data, which `fit_scale` measures and the model stores. `known` has the features at the time of the
    input, not of the predicted value.
    """

    name = "regressor"
    paper = "Elman 1990"

    @dataclass(frozen=True, kw_only=True)
    class Options(RecurrentOptions):
        width: int = option(64, "width of a layer", low=1)
        layers: int = option(1, "number of layers", low=1)
        dropout: float = option(0.0, "on every connection that is not recurrent", low=0, high=0.999)
        init_bound: float = option(0.1, "initial weights are uniform in ± this", low=0)
        values: int = option(1, "predicted numbers per time step", low=1)
        known: int = option(0, "further numbers per time step that are known in advance", low=0)

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
        """Measures the scale on training data (never on test data); a constant is only centred."""
        rows = self._inputs(series, known).flatten(0, 1) if key_mask is None else self._inputs(series, known)[key_mask]
        deviation = rows.std(0, correction=0)
        self.mean.copy_(rows.mean(0))
        varies = deviation > 1e-6 * rows.abs().amax(0)  # more than rounding
        self.deviation.copy_(torch.where(varies, deviation, torch.ones_like(deviation)))

    def forward(self, series: Series, known: Known | None = None, *, key_mask: Mask | None = None) -> Series:
        """The prediction one step ahead at every position; the last row predicts the first value after the series."""
        x, _ = self.recurrent(self._scale(self._inputs(series, known)), key_mask=key_mask)
        return self._unscale(self.head(x))

    def loss(self, series: Series, known: Known | None = None, *, key_mask: Mask | None = None) -> Tensor:
        """The mean squared error one step ahead, in scaled units, over the real targets."""
        if series.dim() == 3 and series.shape[1] < 2:
            raise InvalidInput(f"a series must have at least 2 values, not {series.shape[1]}")
        known = None if known is None else known[:, :-1]
        prediction: Tensor = self(series[:, :-1], known, key_mask=_but_last(key_mask))
        squares = ((prediction - series[:, 1:]) / self.deviation[: self.options.values]) ** 2
        if key_mask is None:
            return squares.mean()
        real = key_mask[:, 1:] & key_mask[:, :-1].cumsum(1).bool()  # a target needs a real value before it
        return squares[real].sum() / (real.sum() * self.options.values).clamp_min(1)

    @torch.no_grad()
    def forecast(self, series: Series, horizon: int, known: Known | None = None) -> Ahead:
        """The next `horizon` values, free-running: each is predicted from the predictions before it.

        `known` covers the series and the predictions that are read back: length + horizon - 1 time steps.
        """
        length, options = series.shape[1], self.options
        if horizon < 1:
            raise InvalidInput(f"horizon must be at least 1, not {horizon}")
        steps = length + horizon - 1
        if options.known and (known is None or known.shape[1] != steps):
            came = "none" if known is None else known.shape[1]
            raise InvalidInput(f"known must have length + horizon - 1 = {steps} time steps, not {came}")
        past = None if known is None else known[:, :length]
        x, state = self.recurrent(self._scale(self._inputs(series, past)))
        predictions = [self._unscale(self.head(x[:, -1:]))]
        for step in range(length, steps):
            known_now = None if known is None else known[:, step : step + 1]
            x, state = self.recurrent(self._scale(self._inputs(predictions[-1], known_now)), state)
            predictions.append(self._unscale(self.head(x)))
        return torch.cat(predictions, 1)

    @torch.no_grad()
    def horizon_errors(self, series: Series, context: int, known: Known | None = None) -> HorizonErrors:
        """How errors grow when predictions are read back; all values after the first `context` are predicted."""
        horizon = series.shape[1] - context
        if context < 1 or horizon < 1:
            raise InvalidInput(f"context must be 1 to {series.shape[1] - 1} of {series.shape[1]} values, not {context}")
        read = None if known is None else known[:, :-1]
        truth = series[:, context:]
        forced = self(series[:, :-1], read)[:, context - 1 :]
        free = self.forecast(series[:, :context], horizon, read)
        errors = (mse_loss(prediction, truth, reduction="none").mean((0, 2)) for prediction in (forced, free))
        return HorizonErrors(*errors)

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


def cyclic(phase: Float[Tensor, "*steps"]) -> Float[Tensor, "*steps 2"]:
    """A fraction of a cycle as sine and cosine, so that the end of a cycle is close to its beginning."""
    angle = 2 * math.pi * phase
    return torch.stack([angle.sin(), angle.cos()], -1)


def calendar_features(dates: Sequence[date]) -> Float[Tensor, "steps 7"]:
    """Day of the month, month and weekday as sine and cosine, and the year as a number: `known` of a regressor."""
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
