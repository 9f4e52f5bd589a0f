"""`longspan adapt quantize`: the written folder, the report, and errors."""

import json
from pathlib import Path

import pytest

from longspan.cli.main import main
from longspan.models import build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    build("decoder", vocabulary=64, width=64, layers=1, heads=4, hidden=96, max_length=64).save(path)
    return path


def test_writes_and_reports(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "light"
    assert main(["adapt", "quantize", str(folder), "--bits", "4", "--out", str(out), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["replaced"]) == 7 and record["kept"] == {} and record["bits"] == "4"
    assert record["quantized"]["weight_bytes"] < record["float32"]["weight_bytes"]
    assert record["float32"]["token_ms"] > 0 and record["quantized"]["loss"] is None
    assert record["bytes_on_disk"]["after"] == sum(file.stat().st_size for file in out.iterdir())
    assert main(["adapt", "quantize", str(out), "--bits", "8", "--out", str(tmp_path / "again")]) == 2
    assert "this model is quantised already (bits 4)" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_auto_takes_the_fastest_of_those_that_fit(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "light"
    assert main(["adapt", "quantize", str(folder), "--bits", "auto", "--out", str(out), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    tried = record["tried_ms"]
    assert set(tried) == {"4", "8", "dynamic8"} and record["bits"] == min(tried, key=tried.get)
    assert json.loads((out / "config.json").read_text())["quantization"]["bits"] == record["bits"]
    build("decoder", vocabulary=50, width=40, layers=1, heads=4, hidden=80).save(tmp_path / "odd")
    words = ["adapt", "quantize", str(tmp_path / "odd"), "--bits", "auto", "--json", "--out", str(tmp_path / "odd8")]
    assert main(words) == 0
    assert set(json.loads(capsys.readouterr().out)["tried_ms"]) == {"8", "dynamic8"}  # no layer fits 4 bits


def test_errors(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, new = ["adapt", "quantize", str(folder), "--bits"], str(tmp_path / "new")
    for arguments, text in (
        ([*base, "4", "--out", str(folder)], "exists already; give another name with --out"),
        ([*base, "4", "--group", "31", "--out", new], "group must be one of 32, 64, 128, 256 weights, not 31"),
        ([*base, "5", "--out", new], "5"),
        ([*base, "4", "--text", "none.txt", "--out", new], "this model has no tokenizer"),
    ):
        assert main(arguments) == 2
        assert text in " ".join(capsys.readouterr().err.split())
        assert not Path(new).exists()
    build("encoder", vocabulary=64, width=64, layers=1, heads=4).save(tmp_path / "encoder")
    assert main(["adapt", "quantize", str(tmp_path / "encoder"), "--bits", "auto", "--out", new]) == 2
    assert "auto times decoding, which this encoder does not do; give 4, 8 or dynamic8" in capsys.readouterr().err
