"""`longspan predict` on a run: one answer for each line."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.tasks.small import pretrained, run

from longspan.cli.main import main


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    (folder / "a.tsv").write_text("text\tlabel\n" + "the film was good\tfine\nthe film was bad\tpoor\n" * 20)
    task = {"name": "classify", "train": str(folder / "a.tsv"), "length": 32}
    run(folder / "run", task, {"from": str(pretrained(folder / "body"))}, steps=40)
    return folder / "run"


def test_labels_of_texts_from_arguments_a_file_and_the_standard_input(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["the film was good", "", "very bad"]
    assert main(["predict", str(trained), *lines]) == 0
    first = capsys.readouterr().out
    assert [line.split("\t")[0] for line in first.splitlines()][::2] == ["fine", "poor"]
    assert len(first.splitlines()) == 3
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    assert main(["predict", str(trained), "--file", str(tmp_path / "lines.txt")]) == 0
    assert capsys.readouterr().out == first
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO("\n".join(lines).encode())))
    assert main(["predict", str(trained / "model"), "--file", "-", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["text"] for each in found] == lines and sum(found[0]["probabilities"].values()) == pytest.approx(1)


def test_what_is_too_long_is_refused_or_cut(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "good " * 300
    assert main(["predict", str(trained), "bad", long]) == 2
    assert "line 2 has 302 tokens, and at most 128 can be read" in " ".join(capsys.readouterr().err.split())
    assert main(["predict", str(trained), "bad", long, "--truncate"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_folder_without_such_a_head_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(pretrained(tmp_path)), "good"]) == 2
    assert "has no head for predictions on texts" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "config.toml").write_text("")
    assert main(["predict", str(tmp_path), "good"]) == 2
    assert "a run without a model yet" in " ".join(capsys.readouterr().err.split())
