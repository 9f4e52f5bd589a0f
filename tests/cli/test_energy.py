"""`longspan energy`: sums over runs, the unknown said, forecasts, one-line errors."""

import json
from pathlib import Path

import pytest

from longspan.cli.main import main

PUE, INTENSITY = 1.58, 0.954 * 0.45359237


def run(folder: Path, name: str, *joules: float | None, steps: int = 10) -> str:
    """The folder of a run as training writes it, with a session for each number."""
    path = folder / name
    path.mkdir()
    (path / "config.toml").write_text("[task]\nname = 'language'\n[model]\n[train]\n")
    (path / "metrics.jsonl").write_text(json.dumps({"step": steps, "loss": 1.0, "seconds": 0.5, "count": 4}) + "\n")
    sessions = [{"energy": None if each is None else {"joules": each, "by": "modelled: x"}} for each in joules]
    (path / "sessions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sessions))
    return str(path)


def test_runs_and_their_sessions_are_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energy", run(tmp_path, "a", 3600.0, 1800.0), run(tmp_path, "b", 1800.0), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["joules"], found["unknown"]) == (7200, 0)
    assert found["kg_co2e"] == pytest.approx(0.002 * PUE * INTENSITY)
    assert [row["by"] for row in found["runs"]] == ["modelled", "modelled"]


def test_an_unknown_part_makes_a_run_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energy", run(tmp_path, "a", 3600.0, None), run(tmp_path, "b", 3600.0)]) == 1
    text = capsys.readouterr().out
    assert "Together 1 Wh at the machine" in text and "1 of unknown energy not included" in text
    assert "PUE 1.58 and 0.433 kg CO2e per kWh" in text


def test_a_forecast_from_a_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energy", run(tmp_path, "a", 36.0), "--steps", "1000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["forecast"]["joules"] == pytest.approx(3600)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give the folder of one run at least"),
        (["nowhere"], "there is no folder nowhere; give the folder of a run"),
        (["nowhere", "--pue", "0.5"], "pue must be 1"),
        (["nowhere", "--steps", "0"], "--steps must be at least 1, not 0"),
    ],
)
def test_errors_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energy", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and message in lines[0]


def test_a_forecast_needs_something_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energy", run(tmp_path, "a", None), "--steps", "100"]) == 2
    assert "nothing can be forecast from it" in capsys.readouterr().err
