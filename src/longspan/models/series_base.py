"""What models of numeric series share: options, scaling, forecasts and errors by horizon, features of dates.

`series.py` has a Transformer that reads a series with any causal attention, `classics/recurrent.py` recurrent layers.
"""

import calendar
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from longspan import config
from longspan.attention.base import check_some
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Mask, Model

Series = Float[Tensor, "batch length values"]
Known = Float[Tensor, "batch steps known"]
Ahead = Float[Tensor, "batch horizon values"]
LEVELS = ("absolute", "relative")
CALENDARS = ("none", "date", "time")


@dataclass(frozen=True, kw_only=True)
class SeriesColumns(config.Options):
    """The table that a model was trained on, so that it can read another one like it."""

    date: str = option("", "the column of the dates; empty: rows have none")
    date_format: str | None = option(None, "their format, as in strptime; none: ISO 8601")
    values: tuple[str, ...] = option(("value",), "the columns that are predicted")
    inputs: tuple[str, ...] | None = option(None, "the columns that are known beforehand")
    calendar: str = option("none", "features of each date: none, the date, or the date and time", choices=CALENDARS)
    decimal: str = option(".", "the decimal mark", choices=(".", ","))
    missing: str = option("refuse", "what is done about missing values")
    gaps: str = option("refuse", "what is done about dates that are not evenly spaced")
    window: int = option(1, "rows that a forecast reads", low=1)
    horizon: int = option(1, "rows that it was evaluated on", low=1)


@dataclass(frozen=True, kw_only=True)
class SeriesOptions(config.Options):
    """The options that all models of series have."""

    values: int = option(1, "how many numbers a time has that are predicted", low=1)
    known: int = option(0, "how many more are known of each time beforehand", low=0)
    level: str = option(
        "absolute",
        "relative: values are read as differences from the first one, and predicted as changes from the last one, so "
        "that levels beyond the training data can be read",
        choices=LEVELS,
    )
    mean: tuple[float, ...] | None = option(None, "mean of each number in the training data, values first")
    deviation: tuple[float, ...] | None = option(None, "standard deviation of each, values first", above=0)
    columns: SeriesColumns | None = option(None, "the table that it was trained on")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mean", "deviation"):
            numbers = getattr(self, name)
            if numbers is not None and len(numbers) != self.values + self.known:
                raise InvalidOption(
                    f"{name} must have {self.values + self.known} numbers, values and then known, not {len(numbers)}"
                )


class HorizonErrors(NamedTuple):
    """Mean squared errors at 1, 2, … steps ahead."""

    teacher_forced: Float[Tensor, " horizon"]  # each value from the true ones before it
    free_running: Float[Tensor, " horizon"]  # each value from the model's own


class SeriesModel(Model):
    """The next values of a series, from those so far and from what is known of each time (the calendar, say).

    Inputs and predictions are in the units of the data; inside, both are scaled by the mean and deviation of the
    training data, which `fit_scale` measures and the model keeps. `known` speaks of the time of the input, not of the
    predicted value.

    A subclass calls `_build_scale` and has a `head` from states to values.
    """

    ability = "a model of numeric series"

    options: Any  # SeriesOptions and others
    head: nn.Linear
    mean: Tensor
    deviation: Tensor

    @abstractmethod
    def states(self, x: Float[Tensor, "batch length inputs"], *, key_mask: Mask | None = None) -> Tensor:
        """The states of all time steps, from scaled inputs; none reads a later step."""

    @abstractmethod
    def reader(self, batch: int) -> Callable[[Tensor], Tensor]:
        """A function that reads the next scaled inputs, one or more, and gives their states."""

    def _build_scale(self) -> None:
        options = self.options
        count = options.values + options.known
        self.register_buffer("mean", torch.tensor(options.mean or [0.0] * count))
        self.register_buffer("deviation", torch.tensor(options.deviation or [1.0] * count))

    @torch.no_grad()
    def fit_scale(self, series: Series, known: Known | None = None, *, key_mask: Mask | None = None) -> None:
        """Takes the scale from training data (never from what it is tested on); a constant is only centred."""
        rows = self._inputs(series, known).flatten(0, 1) if key_mask is None else self._inputs(series, known)[key_mask]
        mean, deviation = scale_of(rows)
        self.mean.copy_(mean)
        self.deviation.copy_(deviation)

    def forward(self, series: Series, known: Known | None = None, *, key_mask: Mask | None = None) -> Series:
        """One step ahead of every place: the last row is the first value that is not in the series."""
        inputs = self._inputs(series, known)
        states = self.states(self._scale(inputs, _first(series, key_mask)), key_mask=key_mask)
        return self._unscale(self.head(states), series)

    def loss(self, series: Series, known: Known | None = None, *, key_mask: Mask | None = None) -> Tensor:
        """Mean squared error one step ahead, in scaled units, over the targets that are real."""
        squares = self.squares(series, known, key_mask=key_mask)
        if key_mask is None:
            return squares.mean()
        real = key_mask[:, 1:] & key_mask[:, :-1].cumsum(1).bool()  # something must have been read before it
        mean: Tensor = squares[real].sum() / (real.sum() * self.options.values).clamp_min(1)
        return mean

    def squares(self, series: Series, known: Known | None = None, *, key_mask: Mask | None = None) -> Series:
        """The squared error of each value but the first, one step ahead, in scaled units."""
        if series.dim() == 3 and series.shape[1] < 2:
            raise InvalidInput(f"a next value needs a series of 2 at least, not {series.shape[1]}")
        guess: Tensor = self(series[:, :-1], _but_last(known), key_mask=_but_last(key_mask))
        error: Tensor = (guess - series[:, 1:]) / self.deviation[: self.options.values]
        return error**2

    @torch.no_grad()
    def forecast(self, series: Series, horizon: int, known: Known | None = None) -> Ahead:
        """The next `horizon` values, free-running: each is made from the model's own before it.

        `known` covers the series and the predictions that are read back: length + horizon - 1 time steps.
        """
        length, options = series.shape[1], self.options
        if horizon < 1:
            raise InvalidInput(f"horizon must be at least 1, not {horizon}")
        steps = length + horizon - 1
        if options.known and (known is None or known.shape[1] != steps):
            came = "none" if known is None else known.shape[1]
            raise InvalidInput(f"known must have length + horizon - 1 = {steps} time steps, not {came}")
        first, read = _first(series, None), self.reader(len(series))
        new, begin = series, 0
        guesses: list[Tensor] = []
        while True:
            here = None if known is None else known[:, begin : begin + new.shape[1]]
            states = read(self._scale(self._inputs(new, here), first))
            guesses.append(self._unscale(self.head(states[:, -1:]), new[:, -1:]))
            if len(guesses) == horizon:
                return torch.cat(guesses, 1)
            begin += new.shape[1]
            new = guesses[-1]

    @torch.no_grad()
    def horizon_errors(self, series: Series, context: int, known: Known | None = None) -> HorizonErrors:
        """How errors grow when predictions are read back: everything behind the first `context` values is predicted."""
        truth = series[:, context:]
        both = self.forced_and_free(series, context, known)
        return HorizonErrors(*(mse_loss(guess, truth, reduction="none").mean((0, 2)) for guess in both))

    @torch.no_grad()
    def forced_and_free(self, series: Series, context: int, known: Known | None = None) -> tuple[Ahead, Ahead]:
        """What is predicted behind the first `context` values: from the true values, and from the model's own."""
        horizon = series.shape[1] - context
        if context < 1 or horizon < 1:
            raise InvalidInput(f"context must leave something to predict of {series.shape[1]} values, not be {context}")
        read = _but_last(known)
        forced = self(series[:, :-1], read)[:, context - 1 :]
        return forced, self.forecast(series[:, :context], horizon, read)

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

    def _scale(self, x: Tensor, first: Tensor) -> Tensor:
        """Inputs in scaled units; `first` (batch, 1, values) are the first values of the series."""
        if self.options.level == "absolute":
            return (x - self.mean) / self.deviation
        values = self.options.values
        mean = self.mean[values:].expand(len(x), 1, -1)
        return (x - torch.cat([first, mean], -1)) / self.deviation

    def _unscale(self, y: Tensor, series: Tensor) -> Tensor:
        """Outputs in the units of the data; `series` are the last values before each."""
        values = self.options.values
        scaled = y * self.deviation[:values]
        return scaled + (self.mean[:values] if self.options.level == "absolute" else series)


def scale_of(rows: Float[Tensor, "rows numbers"]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column; the deviation of a constant is 1."""
    deviation = rows.std(0, correction=0)
    varies = deviation > 1e-6 * rows.abs().amax(0)  # more than rounding
    return rows.mean(0), torch.where(varies, deviation, torch.ones_like(deviation))


def _first(series: Tensor, key_mask: Tensor | None) -> Tensor:
    """The first real value of each row."""
    if key_mask is None:
        return series[:, :1]
    return series[torch.arange(len(series), device=series.device), key_mask.int().argmax(1)][:, None]


def _but_last(x: Any) -> Any:
    return None if x is None else x[:, :-1]


def cyclic(phase: Float[Tensor, "*steps"]) -> Float[Tensor, "*steps 2"]:
    """A share of a cycle as sine and cosine, so that its end is next to its beginning."""
    angle = 2 * math.pi * phase
    return torch.stack([angle.sin(), angle.cos()], -1)


def calendar_features(dates: Sequence[date], *, clock: bool = False) -> Float[Tensor, "steps 7"]:
    """Day of the month, month and weekday, each as sine and cosine, and the year as it is: `known` of a regressor.

    With `clock`, the time of the day is before the year.
    """
    days = [(day.day - 1) / calendar.monthrange(day.year, day.month)[1] for day in dates]
    phases = [days, [(day.month - 1) / 12 for day in dates], [day.weekday() / 7 for day in dates]]
    if clock:
        phases.append([(time.hour + time.minute / 60 + time.second / 3600) / 24 for time in map(_time, dates)])
    years = torch.tensor([float(day.year) for day in dates])[:, None]
    return torch.cat([*(cyclic(torch.tensor(phase)) for phase in phases), years], -1)


def _time(day: date) -> datetime:
    return day if isinstance(day, datetime) else datetime(day.year, day.month, day.day)


__all__ = [
    "CALENDARS",
    "HorizonErrors",
    "SeriesColumns",
    "SeriesModel",
    "SeriesOptions",
    "calendar_features",
    "cyclic",
    "scale_of",
]
