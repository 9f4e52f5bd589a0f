"""`longspan train --seeds` and `resume` of a set: from end to end, and when it is interrupted."""

import json
import signal
from pathlib import Path
from statistics import fmean, stdev

import pytest
from tests.train.starting import finish, longspan, losses, recipe, result, same, start

from longspan.cli.main import main


def train(made: Path, folder: Path, *more: str) -> int:
    return main(["train", str(made), "--out", str(folder), "--train.steps", "4", *more])


def test_each_run_is_the_run_of_its_seed_and_the_summary_is_over_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, folder = recipe(tmp_path), tmp_path / "set"
    assert train(made, folder, "--train.seed", "4", "--seeds", "3") == 0
    output, errors = capsys.readouterr()
    assert "seed 5 (2 of 3)" in errors and output.splitlines()[0].split() == [
        "metric", "mean", "deviation", "seed", "4", "seed", "5", "seed", "6"
    ]  # fmt: skip
    assert train(made, tmp_path / "alone", "--train.seed", "5") == 0
    assert same(result(folder / "seed-5"), result(tmp_path / "alone"))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["seeds"] == [4, 5, 6] == [run["seed"] for run in summary["runs"]]
    values = [run["metrics"]["loss"] for run in summary["runs"]]
    spread = summary["metrics"]["loss"]
    assert spread["values"] == values and spread["mean"] == fmean(values) and spread["deviation"] == stdev(values) > 0
    assert f"{fmean(values):.4g}" in output and f"{stdev(values):.4g}" in output

    capsys.readouterr()
    assert main(["resume", str(folder), "--json"]) == 0  # nothing is left to do
    assert json.loads(capsys.readouterr().out) == summary
    assert train(made, folder, "--seeds", "2") == 2 and train(made, folder) == 2
    assert capsys.readouterr().err.count("has a set of seeds already; resume it, or name another folder") == 2


def test_mistakes_leave_no_set_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = recipe(tmp_path)
    assert train(made, tmp_path / "set", "--seeds", "0") == 2
    assert "--seeds must be 1 to 1000, not 0" in capsys.readouterr().err
    assert train(made, tmp_path / "set", "--seeds", "2", "--model.width", "17") == 2
    assert not (tmp_path / "set").exists()
    assert train(made, tmp_path / "run") == 0
    capsys.readouterr()
    assert train(made, tmp_path / "run", "--seeds", "2") == 2
    assert "has a run already" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    capsys.readouterr()
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "seeds.json").write_text('{"seeds": "all"}')
    assert main(["resume", str(tmp_path / "set")]) == 2
    assert "must list the seeds of the set, not 'all'" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "set")]) == 2
    assert "is a set of seeds; name one of its runs, such as" in capsys.readouterr().err


def test_an_interrupted_set_continues_where_it_stopped_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = recipe(tmp_path)
    assert train(made, tmp_path / "whole", "--seeds", "3") == 0
    folder = tmp_path / "set"
    sent = json.dumps({"step": 2, "rank": 0, "send": [signal.SIGINT]})
    arguments = ["train", str(made), "--out", str(folder), "--train.steps", "4", "--seeds", "3"]
    ((code, output, errors),) = finish(start("tests/train/signalled.py", sent, *arguments))
    assert code == 128 + signal.SIGINT and output == ""
    assert errors.splitlines()[-1] == f"saved at step 2; continue with: longspan resume {folder}"
    assert not (folder / "seed-1").exists() and not (folder / "summary.json").exists()
    assert main(["resume", str(folder)]) == 0
    assert "resuming from step 2" in capsys.readouterr().err
    for seed in range(3):
        assert same(result(folder / f"seed-{seed}"), result(tmp_path / "whole" / f"seed-{seed}"))
        assert losses(folder / f"seed-{seed}") == losses(tmp_path / "whole" / f"seed-{seed}")


def test_two_processes_train_a_set(tmp_path: Path) -> None:
    made, folder = recipe(tmp_path), tmp_path / "set"
    arguments = ["train", str(made), "--out", str(folder), "--train.steps", "2", "--seeds", "2", "--json"]
    (first, second) = longspan(*arguments, world=2)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert json.loads(first[1])["seeds"] == [0, 1] and second[1] == ""
    assert len(json.loads((folder / "summary.json").read_text())["runs"]) == 2
