"""Forecasts of a trained model for a table: the values that follow its last row."""

import csv
import io
import warnings
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longspan.data import series_files
from longspan.data.series_files import Columns, SeriesTable
from longspan.errors import InvalidInput, InvalidOption, Notice, Unsupported
from longspan.models.base import Model
from longspan.models.series_base import SeriesColumns, SeriesModel
from longspan.tasks.series import known_numbers


@dataclass(frozen=True)
class Forecast:
    """The values after a series, and the rows that the model read."""

    columns: SeriesColumns
    past: SeriesTable
    dates: list[datetime] | None
    values: np.ndarray  # (horizon, values)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each step: its date or number, and the values by the names of their columns."""
        rows = []
        for step, values in enumerate(self.values.tolist()):
            when: dict[str, Any] = {"step": step + 1}
            if self.dates is not None:
                when = {self.columns.date: self.date_text(self.dates[step])}
            rows.append({**when, **dict(zip(self.columns.values, values))})
        return rows

    def date_text(self, day: datetime) -> str:
        """A date as the table writes it."""
        return series_files.format_date(day, self.past.columns.date_format, clock=self.columns.calendar == "time")

    def to_csv(self) -> str:
        rows, text = self.rows(), io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: f"{cell:.6g}" if isinstance(cell, float) else cell for name, cell in row.items()} for row in rows
        )
        return text.getvalue()


def forecast(model: Model, path: Path, horizon: int | None = None) -> Forecast:
    """The next `horizon` values of the series in a table like the one that the model was trained on.

    The last `window` rows with values are read. Rows after them, with inputs and no values, tell the inputs of the
    future; a model with inputs needs them for all steps but the last.

    >>> forecast(hub.load("runs/series-lstm").model, Path("sales.csv"), 14).rows()
    """
    reader = SeriesModel.require(model, "series")
    columns: SeriesColumns | None = reader.options.columns
    if columns is None:
        raise Unsupported(f"this {model.name} does not know which columns it reads; train it by the task 'series'")
    horizon = columns.horizon if horizon is None else horizon
    if horizon < 1:
        raise InvalidOption(f"horizon must be at least 1, not {horizon}")
    if horizon > columns.horizon:
        warnings.warn(
            f"the model was trained and evaluated on {columns.horizon} steps; later ones are untested",
            Notice,
            stacklevel=2,
        )
    past, future = _read(path, columns)
    past = series_files.complete(past, missing=columns.missing, gaps=columns.gaps)
    if len(past) < columns.window:
        raise InvalidInput(
            f"{path}, line {past.lines[-1]}: the series ends after {len(past)} rows, and the model reads "
            f"{columns.window}; give more rows, or train with a shorter window"
        )
    dates = None if past.dates is None else series_files.future_dates(past, horizon)
    inputs = np.concatenate([past.inputs[-columns.window :], _future_inputs(future, dates, horizon - 1, columns)])
    all_dates = None if past.dates is None or dates is None else [*past.dates[-columns.window :], *dates[:-1]]
    known = known_numbers(all_dates, inputs, columns.calendar)
    reader.eval()
    values = reader.forecast(
        _tensor(past.values[-columns.window :], reader), horizon, _tensor(known, reader) if known.shape[1] else None
    )
    return Forecast(columns, past, dates, values[0].double().cpu().numpy())


def _read(path: Path, columns: SeriesColumns) -> tuple[SeriesTable, SeriesTable]:
    wanted = Columns(
        date=columns.date,
        date_format=columns.date_format,
        values=columns.values,
        inputs=columns.inputs,
        decimal=columns.decimal,
    )
    return series_files.split_future(series_files.read(path, wanted))


def _future_inputs(future: SeriesTable, dates: list[datetime] | None, steps: int, columns: SeriesColumns) -> np.ndarray:
    """The inputs of the steps after the series."""
    if not columns.inputs:
        return np.zeros((steps, 0))
    names = ", ".join(columns.inputs)
    if len(future) < steps:
        raise InvalidInput(
            f"{future.path} has {len(future)} rows after the last value, and the inputs {names} are needed for "
            f"{steps}: add rows with dates and inputs, and without values"
        )
    for row in range(steps):
        where = f"{future.path}, line {future.lines[row]}"
        if dates is not None and future.dates is not None and future.dates[row] != dates[row]:
            raise InvalidInput(f"{where}: expected the date {dates[row]}, which follows, not {future.dates[row]}")
        if np.isnan(future.inputs[row]).any():
            raise InvalidInput(f"{where}: the inputs {names} are needed in each row after the last value")
    return future.inputs[:steps]


def _tensor(numbers: np.ndarray, model: SeriesModel) -> torch.Tensor:
    return torch.from_numpy(numbers).to(model.dtype).to(model.device)[None]


__all__ = ["Forecast", "forecast"]
