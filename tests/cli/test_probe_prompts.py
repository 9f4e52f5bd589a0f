"""`longspan probe prompts` and `longspan probe limits`: sentences, JSON, pages, folders, and one-line errors."""

import json
from pathlib import Path

import pytest
from tests.hub.folders import bert, decoder

from longspan.cli.main import main

HOSTILE = "</script>\x1b[31m"


def command(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return decoder(tmp_path / "model", max_length=300)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(f"question,answer,options\nWhich {HOSTILE}?,red,red|blue\nWhich now?,blue,red|blue\n")
    return path


def test_json_has_every_reply(model: Path, questions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--questions", questions, "--modes", "zero-shot,few-shot,options", "--max-new", 4, "--json")
    assert command("probe", "prompts", model, *words) == 0
    result = json.loads(capsys.readouterr().out)
    own = result["findings"]["own"]
    assert set(own["modes"]) == {
        "zero-shot",
        "few-shot",
        *(f"options, {name}" for name in ("raw", "per token", "per character", "prior subtracted")),
    }
    assert own["modes"]["zero-shot"]["guess"] == 50 and len(own["replies"]["few-shot"]) == 2
    assert result["prompts"] == "plain text" and "self_report" in result["findings"]


def test_the_page_and_the_terminal_take_no_orders(
    model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = questions.read_text().replace("options\n", "options,set\n").replace("blue\n", "blue,objects\n")
    questions.write_text(rows)
    page = tmp_path / "page.html"
    words = ("--questions", questions, "--modes", "zero-shot", "--html", page)
    assert command("probe", "prompts", model, *words) == 0
    text = page.read_text()
    assert "&lt;/script&gt;" in text and "</script>\x1b" not in text
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out and "random guess has 50 %" in printed.out


def test_errors_are_one_line(model: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("probe", "prompts", bert(tmp_path / "bert")) == 2
    assert command("probe", "prompts", model, "--modes", "zero") == 2
    assert command("probe", "prompts", model, "--sets", "maths") == 2
    assert command("probe", "prompts", model, "--chat") == 2
    assert command("probe", "prompts", model, "--questions", tmp_path / "none.csv") == 2
    assert command("probe", "prompts", model, "--shots", 0) == 2
    assert command("probe", "limits", "--task", "party", "--out", tmp_path / "out") == 2
    assert command("probe", "limits", "--seeds", 0, "--out", tmp_path / "out") == 2
    assert command("probe", "limits", "--out", questions) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("longspan:")]
    assert len(errors) == 9
    assert "use `longspan probe bias`" in errors[0]
    assert "there is no language 'party'; did you mean 'parity'?" in errors[6]
    assert not (tmp_path / "out").exists()


def test_limits_write_a_folder_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ("--task", "parity,dyck1", "--models", "lstm,hard", "--seeds", 2, "--max-length", 4, "--steps", 2)
    sizes = ("--width", 8, "--words", 20, "--depth", 1)
    assert command("probe", "limits", *words, *sizes, "--out", out) == 0
    assert "parity: whether the number of ones is odd: Right after words of 4 letters" in capsys.readouterr().out
    names = {path.name for path in out.iterdir()}
    cells = {
        f"{task}-{kind}-{seed}.json" for task in ("parity", "dyck1") for kind in ("lstm", "hard") for seed in (0, 1)
    }
    assert names == {*cells, "limits.json", "limits.html", "parity.svg", "dyck1.svg", "dyck1-depth.svg"}
    assert "<polygon" in (out / "parity.svg").read_text()  # the band over seeds
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert command("probe", "limits", *words, *sizes, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["findings"]["parity"]["seeds"] == 2
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
