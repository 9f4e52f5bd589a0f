"""`longspan summarize`, as a user types it."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from longspan.cli.main import main
from longspan.data.tokenizers.learn import TokenizerOptions
from longspan.models import build
from longspan.tasks import registry
from longspan.tasks.base import DataPaths


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with an untrained model: what is looked at here is lines and order."""
    root = tmp_path_factory.mktemp("run")
    (root / "a.csv").write_text("text,summary\n" + "One two three. Four.,one\n" * 12)
    words = TokenizerOptions(kind="bpe", size=290)
    task = registry.build("summarize", train=str(root / "a.csv"), batch=4, tokenizer=words)
    prepared = task.prepare(DataPaths(None, root / "data"))
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 1, "heads": 2, "hidden": 16, "source_length": 12, "max_length": 8}
    model = build("transformer", **sizes, **prepared.needs)
    assert prepared.tokenizer is not None
    model.save(root / "model", tokenizer=prepared.tokenizer.to_json())
    (root / "config.toml").write_text("")
    return root


def test_a_line_for_a_line_in_order(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "texts"
    file.write_text("One two.\n\nFour.\n")
    assert main(["summarize", str(run), "--file", str(file), "--beams", "2"]) == 0
    out, err = capsys.readouterr()
    lines = out.removesuffix("\n").split("\n")
    assert len(lines) == 3 and lines[1] == "" and not err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert main(["summarize", str(run), "--file", "-", "--beams", "2"]) == 0
    assert capsys.readouterr().out == out


def test_long_texts_are_cut_with_a_notice_and_json_has_both_texts(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "One two three. " * 20
    assert main(["summarize", str(run), text, "--beams", "1", "--max-new", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == "longspan: the text is longer than 12 tokens; what follows is not read\n"
    (row,) = json.loads(out)
    assert row["text"] == text and set(row) == {"text", "summary", "logprob", "reason"}


@pytest.mark.parametrize(
    "arguments,said",
    [
        ([], "give a text to summarise as an argument, or a file by --file"),
        (["a text", "--beams", "0"], "beams"),
        (["a text", "--max-length", "1"], "--max-length must be at least 2 tokens, not 1"),
    ],
)
def test_wrong_input_is_one_line(
    run: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summarize", str(run), *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out and said in err and len(err.strip().splitlines()) == 1
