"""Charts of series: errors by horizon, and a forecast after its past, as SVG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longspan import files
from longspan.errors import InvalidOption
from longspan.report.charts import DASHES, ChartAxis, ChartLine, curves
from longspan.report.figures import standalone
from longspan.tasks.forecast import Forecast

# Column of the table, its name in the chart, and the kind whose colour it has.
PREDICTORS = (
    ("mae", "free-running", "fixed-pattern"),
    ("forced_mae", "teacher-forced", "low-rank"),
    ("last_mae", "last value", "other"),
    ("seasonal_mae", "seasonal", "other"),
    ("line_mae", "straight line", "other"),
    ("linear_mae", "linear map", "other"),
)
PAST = 2  # rows of the past that a chart shows, in windows


def write_errors(path: Path, table: Sequence[Mapping[str, Any]], heading: str) -> None:
    """Writes a chart of the mean absolute error over the horizon, from the table of an evaluation."""
    rows = [row for row in table if "horizon" in row]
    if not rows:
        raise InvalidOption("--chart draws errors by horizon, which only the task 'series' has")
    names = list(dict.fromkeys(row.get("value", "") for row in rows))
    lines, dashes = [], iter(DASHES)
    for column, name, kind in PREDICTORS:
        if column not in rows[0]:
            continue
        dash = next(dashes) if kind == "other" else ""
        for value in names:
            points = [(float(row["horizon"]), float(row[column])) for row in rows if row.get("value", "") == value]
            tips = [f"{y:.4g} at {x:.0f} steps" for x, y in points]
            lines.append(ChartLine(f"{name} {value}".strip(), kind, points, tips, dash))
    across, up = ChartAxis("steps ahead"), ChartAxis("mean absolute error", holds=(0.0,))
    chart = curves(lines, across, up, f"{heading}: mean absolute error by horizon", width=720, height=340)
    files.write_text(path, standalone(chart, heading))


def write_forecast(path: Path, forecast: Forecast, heading: str) -> None:
    """Writes a chart of the last values and those that follow."""
    shown = min(len(forecast.past), PAST * forecast.columns.window)
    lines = []
    for column, name in enumerate(forecast.columns.values):
        dash = DASHES[column % len(DASHES)]
        known = forecast.past.values[-shown:, column]
        past = [(float(row + 1 - shown), float(value)) for row, value in enumerate(known)]
        ahead = [(float(step + 1), float(value)) for step, value in enumerate(forecast.values[:, column])]
        for title, kind, points in ((name, "dense", past), (f"{name}, forecast", "fixed-pattern", [past[-1], *ahead])):
            tips = [f"{y:.6g} {_when(forecast, int(x))}" for x, y in points]
            lines.append(ChartLine(title, kind, points, tips, dash))
    up = ChartAxis(", ".join(forecast.columns.values))
    chart = curves(lines, ChartAxis("rows after the last value"), up, f"{heading}: forecast", width=720, height=340)
    files.write_text(path, standalone(chart, heading))


def _when(forecast: Forecast, step: int) -> str:
    if forecast.dates is None or forecast.past.dates is None:
        return f"at {step}"
    return forecast.date_text(forecast.dates[step - 1] if step > 0 else forecast.past.dates[step - 1])


__all__ = ["write_errors", "write_forecast"]
