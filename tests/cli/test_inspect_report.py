"""`longspan inspect --report`, `inspect positions` and `inspect words`: files, sentences, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.inspect.measures.small import TEXT, saved

from longspan.cli.main import main


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("encoder") / "model", "encoder")


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("recurrent") / "model", "recurrent")


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["inspect", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["inspect", *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("longspan: ")]
    assert len(lines) == 1
    return lines[0].removeprefix("longspan: ")


def test_the_report_in_files(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text, page = tmp_path / "text.txt", tmp_path / "report.html"
    text.write_text(TEXT)
    where = ("--file", str(text), "--html", str(page))
    flags = ("--report", "--measures", "heads,collapse,drift", "--length", "24", "--texts", "4", "--swap", "linear")
    printed = ask(capsys, str(encoder), *flags, *where)
    record: dict[str, Any] = json.loads(ask(capsys, str(encoder), *flags, *where, "--json"))
    assert list(record["findings"]) == ["heads", "collapse", "drift"] and record["text"] == "text.txt"
    assert record["passages"] == "4 of 24 tokens, and one of 96"
    assert record["findings"]["heads"]["groups"]["encoder"]["text"]["previous"][1][1] > 0
    assert printed.startswith("Where heads look: Layer ") and f"written to {page}" in printed
    html = page.read_text()
    assert "Weights show where a head reads, not why the model answers." in html and "Drift of approximations" in html
    assert "default-src 'none'" in html and "http" not in html.replace("http-equiv", "")


def test_numbers_on_standard_output_and_the_sample(encoder: Path, capsys: pytest.CaptureFixture[str]):
    flags = ("--report", "--measures", "lag", "--length", "24", "--texts", "2", "--json")
    record = json.loads(ask(capsys, str(encoder), *flags))
    assert record["text"] == "the sample of the package" and len(record["findings"]["lag"]["this_model"]) == 12


def test_a_recurrent_model_has_lags_and_stands_beside(
    encoder: Path, recurrent: Path, capsys: pytest.CaptureFixture[str]
):
    flags = ("--report", "--measures", "lag", "--length", "24", "--texts", "2")
    assert ask(capsys, str(recurrent), *flags).startswith("Gradient by lag: A token 8 back still has ")
    record = json.loads(ask(capsys, str(encoder), *flags, "--beside", str(recurrent), "--json"))
    assert "beside_(recurrent)" in record["findings"]["lag"]
    none = "'recurrent' has no attention layers, so there are no heads to measure"
    assert refused(capsys, str(recurrent), "--report") == none
    assert refused(capsys, str(recurrent), "--report", "--measures", "heads") == f"heads: {none}"


def test_what_a_report_refuses(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, never = str(encoder), tmp_path / "never.html"
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    for flags, message in (
        (["--measures", "spectre"], "no measure is called 'spectre'; did you mean 'spectrum'?"),
        (["--file", str(empty)], f"{empty} is empty; give a text of some sentences"),
        (["--text", ""], "the text is empty; give some sentences"),
        (["--file", "nowhere.txt"], "there is no file nowhere.txt"),
        (["--texts", "1"], "--texts must be at least 2, so that one half can control the other, not 1"),
        (["--length", "4"], "--length must be at least 16 tokens, not 4"),
        (["--swap", "windw"], "no attention is called 'windw': did you mean 'window'?"),
        (["--swap", "window:8"], "--swap must be NAME or NAME:OPTION=VALUE,…, not 'window:8'"),
        (["--against", "linear"], "--against is for maps, not for --report; to try another attention, give --swap"),
        (["--pair", "x"], "a target text is for an encoder–decoder, and this is 'encoder'"),
    ):
        assert refused(capsys, model, "--report", *flags, "--html", str(never)) == message
    assert refused(capsys, model, "--text", "a", "--texts", "3") == "--texts is for --report: give it as well"
    assert not never.exists()


def test_positions(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "positions.html"
    printed = ask(capsys, "positions", "sinusoidal:16", "--length", "64", "--html", str(page))
    assert printed.startswith("The position table: The distance of two positions explains 100% of")
    assert "exponent (2i+1)/d" in page.read_text()
    record = json.loads(ask(capsys, "positions", str(encoder), "--json"))
    assert list(record["findings"]) == ["table", "shift", "changes"]
    assert record["findings"]["changes"]["changes"]["as they are"]["output_change"] == 0
    assert "changes" not in json.loads(ask(capsys, "positions", str(encoder), "--no-behaviour", "--json"))["findings"]


def test_what_positions_refuse(recurrent: Path, capsys: pytest.CaptureFixture[str]):
    assert refused(capsys, "positions", "rotary:x") == "expected rotary:NUMBER, such as rotary:64, got 'rotary:x'"
    assert refused(capsys, "positions", "rotary:64", "--length", "1") == "--length must be at least 8 positions, not 1"
    assert refused(capsys, "positions", "rotary:64", "--text", "a").startswith("rotary:64 reads no text; ")
    assert refused(capsys, "positions", str(recurrent)).startswith("this 'recurrent' has no position codes")
    assert refused(capsys, "positions", "nowhere").startswith("there is no folder or file nowhere")


def test_words(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "words.html"
    printed = ask(capsys, "words", str(encoder), "--word", "bank", "--word", "water", "--html", str(page))
    assert [line.split(":")[0] for line in printed.splitlines()[:2]] == [
        "“bank”", "“water” (control",
    ]  # fmt: skip
    assert "token row alone" in page.read_text()
    vectors, questions = tmp_path / "vectors.txt", tmp_path / "questions.txt"
    vectors.write_text("3 2\nman 1 0\nking 1 1\nwoman -1 0\n")
    questions.write_text(": all\nman king woman queen\n")
    record = json.loads(ask(capsys, "words", "--vectors", str(vectors), "--analogies", str(questions), "--json"))
    assert record["findings"]["analogies"]["3CosAdd"]["skipped"] == 1


def test_what_words_refuse(encoder: Path, recurrent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, senses = str(encoder), tmp_path / "senses.tsv"
    senses.write_text("bank\triver\tThe shore.\n")
    for flags, message in (
        ([], "give a model, or static vectors by --vectors"),
        ([model, "--word", "bnk"], "there are no sentences for the word 'bnk'; did you mean 'bank'?"),
        ([model, "--senses", str(senses)], f"{senses}, line 1: 'bank' is not in the sentence 'The shore.'"),
        ([model, "--limit", "3"],
         "--analogies, --similarity and --limit are for static vectors; give them by --vectors"),
        (["--vectors", "x.vec"], "--vectors needs questions: give --analogies or --similarity"),
        (["--vectors", "x.vec", "--analogies", "q", "--word", "bank"],
         "--senses and --word are for a model that reads sentences; give one"),
        ([str(recurrent)], "vectors in context come from an encoder, a decoder, an encoder–decoder or ELMo; "
         "this is 'recurrent'"),
    ):  # fmt: skip
        assert refused(capsys, "words", *flags) == message
