"""Time series: the next values, from a window of those before and from what is known of each time.

A model learns one step ahead (teacher-forced). It is evaluated over a horizon of several steps, from the true values
before each step and free-running, from its own predictions, next to baselines without a network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longspan.config import option
from longspan.data import series_files
from longspan.data.base import Batch
from longspan.data.series_files import Columns, SeriesTable
from longspan.data.series_windows import SeriesWindows
from longspan.data.sets import named as named_sets
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model
from longspan.models.series_base import SeriesColumns, SeriesModel, calendar_features, scale_of
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss

LEAST = 1e-6  # ridge of the linear baseline, relative to the mean square of its inputs


@dataclass
class SeriesMetrics(Metrics):
    """Errors by value and horizon in the units of the data, of the model and of the baselines."""

    names: tuple[str, ...]  # of the values
    windows: int = 0
    squares: float = 0.0  # one step ahead, in scaled units
    places: int = 0
    absolute: dict[str, np.ndarray] = field(default_factory=dict)  # by predictor: (horizon, values), summed
    squared: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, names: tuple[str, ...], guesses: Mapping[str, np.ndarray], truth: np.ndarray) -> "SeriesMetrics":
        """Of predictions (windows, horizon, values) by predictor."""
        errors = {name: guess.astype(np.float64) - truth for name, guess in guesses.items()}
        return cls(
            names,
            len(truth),
            absolute={name: np.abs(error).sum(0) for name, error in errors.items()},
            squared={name: (error**2).sum(0) for name, error in errors.items()},
        )

    def add(self, other: Metrics) -> None:
        assert isinstance(other, SeriesMetrics)
        self.windows, self.places = self.windows + other.windows, self.places + other.places
        self.squares += other.squares
        for mine, theirs in ((self.absolute, other.absolute), (self.squared, other.squared)):
            for name, errors in theirs.items():
                mine[name] = mine[name] + errors if name in mine else errors

    def scores(self, predictor: str) -> dict[str, float]:
        """MAE and RMSE over the horizon; by value if there are several."""
        scores = {}
        for column, name in enumerate(self.names):
            ending = "" if len(self.names) == 1 else f"_{name}"
            scores[f"mae{ending}"] = float(self.absolute[predictor][:, column].mean()) / self.windows
            scores[f"rmse{ending}"] = float((self.squared[predictor][:, column].mean() / self.windows) ** 0.5)
        return scores

    def result(self) -> dict[str, float]:
        forced = {f"forced_{name}": score for name, score in self.scores("forced").items()}
        return {"loss": self.squares / max(self.places, 1), **self.scores("free"), **forced}

    def table(self) -> list[dict[str, Any]]:
        """A row for each step of the horizon (and value), with MAE and RMSE of each predictor."""
        rows = []
        for column, name in enumerate(self.names):
            for step in range(len(self.absolute["free"])):
                row: dict[str, Any] = {"horizon": step + 1} | ({"value": name} if len(self.names) > 1 else {})
                for predictor in self.absolute:
                    start = "" if predictor == "free" else f"{predictor}_"
                    row[f"{start}mae"] = float(self.absolute[predictor][step, column]) / self.windows
                    row[f"{start}rmse"] = float((self.squared[predictor][step, column] / self.windows) ** 0.5)
                rows.append(row)
        return rows


@dataclass(frozen=True)
class Baselines:
    """Forecasts without a network, from the last rows of a window.

    - `last`: the last value.
    - `seasonal`: the value one season before.
    - `line`: the straight line through the window, by least squares.
    - `linear`: the linear map from window to horizon that fits the training data best (Zeng et al. 2023).
    """

    horizon: int
    season: int | None
    weights: np.ndarray  # (values, window, horizon), on differences from the last value

    @classmethod
    def fit(cls, data: SeriesWindows, window: int, season: int | None) -> "Baselines":
        horizon, columns = data.length - window, data.values.shape[1]
        weights = np.zeros((columns, window, horizon))
        for column in range(columns):
            gram, target = np.zeros((window, window)), np.zeros((window, horizon))
            for start in data.starts:
                rows = data.values[start : start + data.length, column]
                past, ahead = rows[:window] - rows[window - 1], rows[window:] - rows[window - 1]
                gram += np.outer(past, past)
                target += np.outer(past, ahead)
            ridge = LEAST * np.trace(gram) / window + 1e-12
            weights[column] = np.linalg.solve(gram + ridge * np.eye(window), target)
        return cls(horizon, season if season is not None and season <= window else None, weights)

    def guesses(self, past: np.ndarray) -> dict[str, np.ndarray]:
        """The forecasts of each baseline for windows (windows, rows, values)."""
        past, steps = past.astype(np.float64), np.arange(self.horizon)
        last, rows = past[:, -1:], np.arange(past.shape[1])
        guesses = {"last": np.repeat(last, self.horizon, 1)}
        if self.season is not None:
            guesses["seasonal"] = past[:, past.shape[1] - self.season + steps % self.season]
        centred = rows - rows.mean()
        slope = (centred[:, None] * past).sum(1, keepdims=True) / max(float((centred**2).sum()), 1.0)
        ahead = (len(rows) + steps - rows.mean())[:, None]
        guesses["line"] = past.mean(1, keepdims=True) + slope * ahead
        guesses["linear"] = last + np.einsum("bwv,vwh->bhv", past - last, self.weights)
        return guesses


class NextValues(Objective):
    """The squared error of each next value, in scaled units; batches have `series` and, if there are any, `known`."""

    unit = "values"

    def __init__(self, window: int, names: tuple[str, ...], baselines: Baselines) -> None:
        self.window, self.names, self.baselines = window, names, baselines

    def count(self, batch: Batch) -> int:
        return batch["series"][:, 1:].numel()

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        reader = SeriesModel.require(model, Series.name)
        total = reader.squares(batch["series"], batch.get("known")).sum()
        extra = model.auxiliary_loss()
        return TaskLoss(total if extra is None else total + extra * self.count(batch), {})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[SeriesMetrics, Any]:
        reader, series = SeriesModel.require(model, Series.name), batch["series"]
        forced, free = reader.forced_and_free(series, self.window, batch.get("known"))
        rows = series.cpu().numpy().astype(np.float64)
        guesses = {"free": free.cpu().numpy(), "forced": forced.cpu().numpy()}
        guesses |= self.baselines.guesses(rows[:, : self.window])
        metrics = SeriesMetrics.of(self.names, guesses, rows[:, self.window :])
        metrics.squares = float(reader.squares(series, batch.get("known")).sum())
        metrics.places = self.count(batch)
        return metrics, None


class Series(Task):
    """Forecasts of the next values of a table with dates."""

    name = "series"
    reads_text = False

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        set: str | None = option(None, "a named data set; see `longspan data list`")
        train: str | None = option(None, "a table with dates and values (.csv, .tsv, .jsonl), if no set is named")
        share: float = option(0.2, "share of the rows to hold out: the last ones, before those of the test", low=0)
        test_share: float = option(0.0, "share of the rows for a test: the very last ones", low=0)
        date: str | None = option(None, 'the column of the dates; guessed unless given, and "" if rows have none')
        date_format: str | None = option(None, "as in strptime, such as %d.%m.%Y; guessed unless given")
        values: tuple[str, ...] | None = option(None, "the columns to predict; the first with numbers unless given")
        inputs: tuple[str, ...] | None = option(
            None, "columns that are known beforehand, for the time to predict too, and are read beside the values"
        )
        calendar: bool = option(True, "whether day, month, weekday, time of day and year are read too")
        decimal: str = option(".", "the decimal mark of numbers", choices=(".", ","))
        encoding: str | None = option(None, "of the file, such as cp1252; UTF-8 unless given")
        missing: str = option(
            "refuse",
            "missing values: refuse them, take the previous one, or the line between the neighbours",
            choices=series_files.MISSING,
        )
        gaps: str = option(
            "refuse",
            "dates that are not evenly spaced: refuse them, keep the rows as they are, or fill in the missing dates",
            choices=series_files.GAPS,
        )
        window: int = option(64, "rows that a forecast reads", low=1)
        horizon: int = option(24, "rows to forecast in evaluation", low=1)
        season: int | None = option(
            None, "rows of a season, for the seasonal baseline; by the spacing unless given (daily: 7)", low=1
        )
        batch: int = option(32, "windows per batch", low=1)

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 < self.share + self.test_share < 1:
                raise InvalidOption(
                    f"share + test_share must be above 0 and below 1, not {self.share + self.test_share}"
                )

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        table = self._table(folders)
        known, calendar = _known(table, options.calendar)
        rows, length = len(table), options.window + options.horizon
        stop, held_out_stop = (
            round(rows * share) for share in (1 - options.share - options.test_share, 1 - options.test_share)
        )
        if stop < length or (options.share and held_out_stop - stop < options.horizon):
            raise InvalidInput(
                f"{table.path}, line {table.lines[-1]}: the series ends after {rows} rows, of which {stop} are for "
                f"training and {held_out_stop - stop} held out; window {options.window} + horizon {options.horizon} "
                f"need {length} and {options.horizon} at least"
            )
        windows = {"train": (range(stop - length + 1), True)}
        for split, begin, end in (("held_out", stop, held_out_stop), ("test", held_out_stop, rows)):
            if end - begin >= options.horizon:  # all that is predicted is in the split, and what is read may be before
                windows[split] = (range(begin - options.window, end - length + 1), False)
        data = {
            split: SeriesWindows(table.values, known, starts, length, options.batch, seed=folders.seed, shuffle=shuffle)
            for split, (starts, shuffle) in windows.items()
        }
        names = table.columns.values or ()
        season = options.season if options.season is not None else table.spacing.season if table.spacing else None
        baselines = Baselines.fit(data["train"], options.window, season)
        mean, deviation = scale_of(torch.from_numpy(np.concatenate([table.values, known], 1)[:stop]))
        columns = SeriesColumns(
            date=table.columns.date or "",
            date_format=table.columns.date_format,
            values=names,
            inputs=table.columns.inputs,
            calendar=calendar,
            decimal=options.decimal,
            missing=options.missing,
            gaps=options.gaps,
            window=options.window,
            horizon=options.horizon,
        )
        held_out = data.get("held_out", data.get("test"))
        assert held_out is not None
        return Prepared(
            data["train"],
            held_out,
            NextValues(options.window, names, baselines),
            data.get("test"),
            needs={
                "values": len(names),
                "known": known.shape[1],
                "mean": tuple(mean.tolist()),
                "deviation": tuple(deviation.tolist()),
                "columns": columns,
            },
            facts={**_facts(table, data), "baselines": _baseline_scores(held_out, options.window, names, baselines)},
        )

    def _table(self, folders: DataPaths) -> SeriesTable:
        options = self.options
        if (options.set is None) == (options.train is None):
            raise InvalidOption("[task] names a set, or a file to train on: one of the two")
        path = (
            Path(options.train or "") if options.set is None else named_sets.files(options.set, folders.data)["train"]
        )
        columns = Columns(
            date=options.date,
            date_format=options.date_format,
            values=options.values,
            inputs=options.inputs,
            decimal=options.decimal,
        )
        table = series_files.read(path, columns, encoding=options.encoding)
        return series_files.complete(table, missing=options.missing, gaps=options.gaps)


def _known(table: SeriesTable, calendar: bool) -> tuple[np.ndarray, str]:
    """What is known of each row, and which features of the date are part of it."""
    if table.dates is None or not calendar:
        return table.inputs, "none"
    kind = "time" if series_files.has_clock(table.dates) else "date"
    return known_numbers(table.dates, table.inputs, kind), kind


def known_numbers(dates: Sequence[Any] | None, inputs: np.ndarray, calendar: str) -> np.ndarray:
    """What is known of each time: features of its date, and the inputs."""
    if calendar == "none" or dates is None:
        return inputs
    features = calendar_features(dates, clock=calendar == "time").double().numpy()
    return np.concatenate([features, inputs], 1)


def _facts(table: SeriesTable, data: Mapping[str, SeriesWindows]) -> dict[str, Any]:
    facts: dict[str, Any] = {"rows": len(table), "values": ", ".join(table.columns.values or ())}
    if table.dates is not None:
        first, last = (
            series_files.format_date(day, None, clock=series_files.has_clock(table.dates))
            for day in (table.dates[0], table.dates[-1])
        )
        facts |= {"dates": f"{first} to {last}", "spacing": str(table.spacing)}
    if table.gaps:
        facts["irregular steps"] = table.gaps
    if table.filled:
        facts["missing values filled"] = table.filled
    return facts | {f"{split} windows": len(windows.starts) for split, windows in data.items()}


def _baseline_scores(
    data: SeriesWindows, window: int, names: tuple[str, ...], baselines: Baselines
) -> dict[str, dict[str, float]]:
    metrics = SeriesMetrics(names)
    for start in data.starts:
        rows = data.values[None, start : start + data.length]
        metrics.add(SeriesMetrics.of(names, baselines.guesses(rows[:, :window]), rows[:, window:]))
    return {name: metrics.scores(name) for name in metrics.absolute}


__all__ = ["Baselines", "NextValues", "Series", "SeriesMetrics", "known_numbers"]
