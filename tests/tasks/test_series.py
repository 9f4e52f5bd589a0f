"""Forecasts of series: windows, held-out time, scales, errors by horizon, and baselines against counts by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build, load
from longspan.models.base import Model
from longspan.tasks import registry
from longspan.tasks.base import DataPaths, Prepared
from longspan.tasks.forecast import forecast
from longspan.tasks.series import Baselines, SeriesMetrics
from longspan.train.evaluate import collect_metrics
from longspan.train.processes import Processes


def write(folder: Path, count: int = 40, header: str = "date,v") -> Path:
    """Daily values 0, 1, 4, 9, … from 2020-01-01, which are in a line at no time."""
    path = folder / "series.csv"
    days = np.arange("2020-01-01", count, dtype="datetime64[D]") if count else []
    path.write_text("\n".join([header, *(f"{day},{row**2}" for row, day in enumerate(days))]) + "\n", encoding="utf-8")
    return path


def prepare(folder: Path, path: Path, **options: object) -> Prepared:
    given = {"train": str(path), "window": 5, "horizon": 3, "share": 0.25, "batch": 4, **options}
    return registry.build("series", **given).prepare(DataPaths(None, folder / "work"))


def model_for(prepared: Prepared, kind: str = "regressor", **options: object) -> Model:
    return build(kind, width=8, layers=1, dropout=0.0, **options, **prepared.needs)


def test_windows_keep_to_their_time(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, write(tmp_path), share=0.2, test_share=0.1, calendar=False)  # 28, 8 and 4 rows
    batches = {
        "train": [prepared.train.load(numbers, 3) for numbers in prepared.train.batches(3)],
        "held_out": [prepared.held_out.load(numbers, 0) for numbers in prepared.held_out.batches(0)],
        "test": [prepared.test.load(numbers, 0) for numbers in prepared.test.batches(0)] if prepared.test else [],
    }
    rows = {split: torch.cat([batch["series"] for batch in loaded])[..., 0].sqrt() for split, loaded in batches.items()}
    assert sorted(rows["train"][:, 0].tolist()) == list(range(21))  # the last one ends at row 27
    assert rows["held_out"][:, 5].tolist() == list(range(28, 34))  # what is predicted is held out; what is read is not
    assert rows["test"][:, 5].tolist() == [36, 37]
    assert prepared.facts["train windows"] == 21 and prepared.facts["spacing"] == "a day"
    assert prepared.facts["dates"] == "2020-01-01 to 2020-02-09"


def test_the_scale_is_that_of_the_training_rows(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, write(tmp_path))
    values = np.arange(30.0) ** 2
    assert prepared.needs["mean"][0] == pytest.approx(values.mean())
    assert prepared.needs["deviation"][0] == pytest.approx(values.std())
    assert prepared.needs["known"] == 7 and prepared.needs["deviation"][-1] == 1  # the year is constant
    model = model_for(prepared)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.options.columns == prepared.needs["columns"] and torch.equal(again.mean, model.mean)


def test_baselines_by_hand() -> None:
    past = np.array([[[1.0], [2.0], [4.0], [3.0]]])
    weights = np.zeros((1, 4, 3))
    weights[0, 0, 1] = 2.0  # two steps ahead: the last value and twice the first one's difference from it
    guesses = Baselines(3, 2, weights).guesses(past)
    assert guesses["last"][0, :, 0].tolist() == [3, 3, 3]
    assert guesses["seasonal"][0, :, 0].tolist() == [4, 3, 4]
    assert guesses["line"][0, :, 0].tolist() == pytest.approx(
        np.polyval(np.polyfit(range(4), past[0, :, 0], 1), [4, 5, 6])
    )
    assert guesses["linear"][0, :, 0].tolist() == [3, -1, 3]
    assert "seasonal" not in Baselines(3, None, weights).guesses(past)


def test_the_linear_baseline_finds_a_linear_rule(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, write(tmp_path))  # squares follow a linear recurrence
    scores = prepared.facts["baselines"]
    assert list(scores) == ["last", "line", "linear"]  # a season of 7 is longer than the window
    assert scores["linear"]["mae"] < 0.1 < 1 < scores["line"]["mae"] < scores["last"]["mae"]
    assert scores["last"]["mae"] == pytest.approx(
        np.mean([abs((row + step) ** 2 - (row - 1) ** 2) for row in range(30, 38) for step in range(3)])
    )


@pytest.mark.parametrize("kind", ["regressor", "series_transformer"])
def test_errors_by_horizon_are_those_of_a_loop(tmp_path: Path, kind: str) -> None:
    prepared = prepare(tmp_path, write(tmp_path))
    model = model_for(prepared, kind).eval()
    metrics = collect_metrics(model, prepared.held_out, prepared.objective, Processes())
    assert isinstance(metrics, SeriesMetrics)
    free, forced = np.zeros((8, 3)), np.zeros((8, 3))
    with torch.no_grad():
        for number in range(8):
            batch = prepared.held_out.load([number], 0)
            series, known = batch["series"], batch["known"]
            rows = series[:, :5]
            for step in range(3):
                guess = model(rows, known[:, : 5 + step])[:, -1:]
                free[number, step] = float(guess[0, 0, 0] - series[0, 5 + step, 0])
                rows = torch.cat([rows, guess], 1)
                true = model(series[:, : 5 + step], known[:, : 5 + step])[0, -1, 0]
                forced[number, step] = float(true - series[0, 5 + step, 0])
    table = metrics.table()
    assert [row["horizon"] for row in table] == [1, 2, 3]
    assert [row["mae"] for row in table] == pytest.approx(np.abs(free).mean(0), rel=1e-4)
    assert [row["rmse"] for row in table] == pytest.approx((free**2).mean(0) ** 0.5, rel=1e-4)
    assert [row["forced_mae"] for row in table] == pytest.approx(np.abs(forced).mean(0), rel=1e-4)
    assert metrics.result()["mae"] == pytest.approx(np.abs(free).mean(), rel=1e-4)
    assert table[0]["mae"] == pytest.approx(table[0]["forced_mae"], rel=1e-4)  # nothing was read back yet


def test_the_loss_is_the_sum_of_scaled_squares(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, write(tmp_path))
    model, batch = model_for(prepared), prepared.train.load([0, 1], 0)
    guess = model(batch["series"][:, :-1], batch["known"][:, :-1])
    squares = ((guess - batch["series"][:, 1:]) / prepared.needs["deviation"][0]) ** 2
    total = prepared.objective.loss(model, batch).total.detach()
    assert float(total) == pytest.approx(float(squares.detach().sum()), rel=1e-5)
    assert prepared.objective.count(batch) == 2 * 7
    with pytest.raises(
        Unsupported, match="the task 'series' needs a model of numeric series, and 'decoder' is not one"
    ):
        prepared.objective.loss(build("decoder", layers=1, width=8, heads=1), batch)


def test_several_values_have_errors_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    rows = [f"2020-01-{day:02d},{day},{100 * day},{day % 3}" for day in range(1, 32)]
    path.write_text("\n".join(["date,a,b,c", *rows]), encoding="utf-8")
    prepared = prepare(tmp_path, path, values=["a", "b"], inputs=["c"], calendar=False)
    assert prepared.needs["values"] == 2 and prepared.needs["known"] == 1
    metrics = collect_metrics(model_for(prepared).eval(), prepared.held_out, prepared.objective, Processes())
    assert metrics is not None
    assert {"mae_a", "rmse_b", "forced_mae_a"} <= set(metrics.result())
    assert [(row["value"], row["horizon"]) for row in metrics.table()] == [(v, h) for v in "ab" for h in (1, 2, 3)]


def test_series_that_are_too_short(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"series\.csv, line 9: the series ends after 8 rows, of which 6 are for"):
        prepare(tmp_path, write(tmp_path, 8))
    with pytest.raises(InvalidOption, match="share \\+ test_share must be above 0 and below 1"):
        prepare(tmp_path, write(tmp_path), share=0.5, test_share=0.5)
    with pytest.raises(InvalidOption, match="names a set, or a file"):
        registry.build("series").prepare(DataPaths(None, tmp_path))


def test_a_forecast_reads_the_last_window(tmp_path: Path) -> None:
    path = write(tmp_path)
    prepared = prepare(tmp_path, path)
    model = model_for(prepared).eval()
    found = forecast(model, path, 2)
    batch = prepared.held_out.load([7], 0)  # its window ends before the last three rows
    short = tmp_path / "short.csv"
    short.write_text("\n".join(path.read_text(encoding="utf-8").splitlines()[:-3]) + "\n", encoding="utf-8")
    ahead = model.forecast(batch["series"][:, :5], 3, batch["known"][:, :7])
    assert forecast(model, short).values[:, 0].tolist() == pytest.approx(ahead[0, :, 0].tolist(), rel=1e-6)
    assert [row["date"] for row in found.rows()] == ["2020-02-10", "2020-02-11"] and len(found.values) == 2
    assert found.to_csv().startswith("date,v\n2020-02-10,")
    with pytest.raises(InvalidInput, match=r"series\.csv, line 5: the series ends after 4 rows, and the model reads 5"):
        forecast(model, write(tmp_path, 4))
    with pytest.raises(InvalidInput, match="has no column 'v': did you mean"):
        forecast(model, write(tmp_path, 9, "date,w"))
    with pytest.raises(Unsupported, match="does not know which columns it reads"):
        forecast(build("regressor", width=8), path)


def test_inputs_of_the_future_are_rows_without_values(tmp_path: Path) -> None:
    path = tmp_path / "inputs.csv"
    rows = [f"2020-01-{day:02d},{day if day < 29 else ''},{day % 3}" for day in range(1, 32)]
    path.write_text("\n".join(["date,v,w", *rows[:28]]), encoding="utf-8")
    prepared = prepare(tmp_path, path, inputs=["w"])
    model = model_for(prepared).eval()
    with pytest.raises(InvalidInput, match=r"inputs\.csv has 0 rows after the last value, and the inputs w are needed"):
        forecast(model, path)
    path.write_text("\n".join(["date,v,w", *rows]), encoding="utf-8")
    assert [row["date"] for row in forecast(model, path).rows()] == ["2020-01-29", "2020-01-30", "2020-01-31"]
    rows[28] = "2020-01-29,,"
    path.write_text("\n".join(["date,v,w", *rows]), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"inputs\.csv, line 30: the inputs w are needed in each row after"):
        forecast(model, path)
    rows[28] = "2020-01-29 06:00,,1"
    path.write_text("\n".join(["date,v,w", *rows]), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"inputs\.csv, line 30: expected the date 2020-01-29 00:00:00"):
        forecast(model, path)
