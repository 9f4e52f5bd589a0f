"""`longspan train`, `evaluate` and `predict` on a series, from end to end."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.train.starting import result, same

from longspan.cli.main import main

RECIPE = """
[task]
name = "series"
train = "{0}/series.csv"
window = 8
horizon = 4
batch = 8

[model]
{1}

[train]
steps = 6
log_every = 1
save_every = 3
schedule = {{ kind = "constant", rate = 1e-3 }}
"""
MODELS = {
    "lstm": 'name = "regressor"\nwidth = 8',
    "transformer": 'name = "series_transformer"\nlayers = 1\nwidth = 8\nheads = 2\nhidden = 16\nattention = ["linear"]',
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "series.csv"
    rows = [f"{day:02d}.{month:02d}.2021,{day % 7 + month}" for month in range(1, 5) for day in range(1, 29)]
    path.write_text("\n".join(["day,sold", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", MODELS)
def test_train_evaluate_predict(tmp_path: Path, table: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = tmp_path / "small.toml", tmp_path / "run"
    recipe.write_text(RECIPE.format(tmp_path, MODELS[kind]), encoding="utf-8")
    assert main(["train", str(recipe), "--out", str(run)]) == 2  # February has 28 days, the other months have more
    assert "series.csv, line 30: the date is 4 days, 0:00:00 after the one before" in capsys.readouterr().err
    assert not run.exists()
    keep = ["--task.gaps", "keep"]
    assert main(["train", str(recipe), "--out", str(run), *keep]) == 0
    errors = capsys.readouterr().err
    assert "rows 112, values sold, dates 2021-01-01 to 2021-04-28, spacing a day, irregular steps 2" in errors
    assert "baselines without a model" in errors and "seasonal  mae" in errors

    halves = tmp_path / "halves"
    assert main(["train", str(recipe), "--out", str(halves), "--train.steps", "3", *keep]) == 0
    config = halves / "config.toml"
    config.write_text(config.read_text().replace("steps = 3", "steps = 6"), encoding="utf-8")
    assert main(["resume", str(halves)]) == 0
    assert same(result(run), result(halves))
    capsys.readouterr()

    chart = tmp_path / "errors.svg"
    assert main(["evaluate", str(run), "--chart", str(chart)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{run}/model, held_out: loss ") and lines[1].split()[:3] == ["horizon", "mae", "rmse"]
    assert len(lines) == 2 + 4 and lines[-1].split()[0] == "4"
    texts = [node.text for node in ElementTree.parse(chart).iter() if node.text]
    assert {"free-running", "teacher-forced", "linear map", "steps ahead"} <= set(texts)

    out = tmp_path / "ahead.csv"
    assert main(["predict", str(run), str(table), "--horizon", "3", "--out", str(out), "--chart", str(chart)]) == 0
    assert capsys.readouterr().out == f"{out}: 3 rows after {table}\n"
    written = out.read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in written] == ["day", "29.04.2021", "30.04.2021", "01.05.2021"]
    assert main(["predict", str(run), str(table), "--horizon", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == written
    assert main(["predict", str(run), str(table), "--horizon", "5", "--json"]) == 0
    output, errors = capsys.readouterr()
    rows = json.loads(output)
    assert [row["day"] for row in rows][-1] == "03.05.2021" and isinstance(rows[0]["sold"], float)
    assert "the model was trained and evaluated on 4 steps; later ones are untested" in errors


def test_mistakes(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = tmp_path / "small.toml", tmp_path / "run"
    recipe.write_text(RECIPE.format(tmp_path, MODELS["lstm"]), encoding="utf-8")
    assert main(["train", str(recipe), "--out", str(run), "--task.gaps", "keep", "--train.steps", "1"]) == 0
    capsys.readouterr()
    for arguments, message in (
        ([], "give one table to forecast, such as series.csv"),
        ([str(table), str(table)], "give one table to forecast"),
        ([str(tmp_path / "none.csv")], "there is no file"),
        ([str(table), "--horizon", "0"], "horizon must be at least 1, not 0"),
        ([str(table), "--out", str(tmp_path / "no" / "x.csv")], "cannot be written: there is no folder"),
    ):
        assert main(["predict", str(run), *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error
    bad = tmp_path / "bad.csv"
    bad.write_text(table.read_text(encoding="utf-8").replace("03.02.2021,5", "03.02.2021,five"), encoding="utf-8")
    assert main(["predict", str(run), str(bad)]) == 2
    assert capsys.readouterr().err == (
        f"longspan: {bad}, line 32: sold must be a number, not 'five'; leave it empty if it is missing\n"
    )
