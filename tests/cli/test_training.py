"""`longspan train`, `resume` and `evaluate` from end to end, on a small text."""

import json
import tomllib
from pathlib import Path

import pytest
from tests.train.starting import losses, recipe, result, same

from longspan.cli.inputs import dotted
from longspan.cli.main import main
from longspan.cli.training import VALUES


def test_train_evaluate_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, folder = str(recipe(tmp_path)), tmp_path / "run"
    assert main(["train", made, "--out", str(folder), "--train.steps", "6", "--train.schedule.warmup=2"]) == 0
    output, errors = capsys.readouterr()
    assert output.startswith(f"{folder}/model: loss ")
    assert "train tokens" in errors and "parameters; 6 steps" in errors  # the facts of the task, and of the model
    assert list(losses(folder)) == [1, 2, 3, 4, 5, 6]
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["train"]["steps"] == 6 and config["train"]["schedule"]["warmup"] == 2
    assert config["train"]["clip"] == 1.0 and config["task"]["name"] == "language"  # defaults stand there too

    assert main(["evaluate", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    logged = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["held_out"]
    assert found["figures"] == pytest.approx(logged) and found["split"] == "held_out"
    assert main(["evaluate", str(folder), "--split", "test"]) == 2
    assert "the task has no test data" in capsys.readouterr().err
    assert main(["evaluate", str(folder), "--split", "tests"]) == 2
    capsys.readouterr()

    before = result(folder)
    assert main(["resume", str(folder)]) == 0  # there is nothing left to do
    assert "going on from step 6" in capsys.readouterr().err and same(before, result(folder))


def test_a_run_is_named_after_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(recipe(tmp_path)), "--train.steps", "1"]) == 0
    assert (tmp_path / "runs" / "small" / "model" / "tokenizer.json").is_file()


def test_a_run_that_was_not_saved_is_begun_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, folder = str(recipe(tmp_path)), tmp_path / "run"
    arguments = ["train", made, "--out", str(folder), "--train.steps", "3"]
    assert main([*arguments, "--train.bad_steps", "1", "--train.schedule.rate", "1e38"]) == 2  # after its first steps
    assert "not finite" in capsys.readouterr().err
    assert main(["resume", str(folder)]) == 2
    assert "none was saved yet" in capsys.readouterr().err
    assert main(arguments) == 0
    assert list(losses(folder)) == [1, 2, 3]


def test_values_are_read_as_toml() -> None:
    given = ["--a.b", "3", "--a.c=x y", "--a.d", "-1.5", "--a.e", "[1, 2]", "--a.f", "true", "--a.g", '{ k = "v" }']
    assert dotted(given, VALUES) == {"a.b": 3, "a.c": "x y", "a.d": -1.5, "a.e": [1, 2], "a.f": True, "a.g": {"k": "v"}}
