"""`longspan translate`, as a user types it."""

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
    (root / "p.tsv").write_text("one two\teins zwei\ntwo three\tzwei drei\n" * 10)
    task = registry.build(
        "translate", train=str(root / "p.tsv"), batch=4, tokenizer=TokenizerOptions(kind="bpe", size=280)
    )
    prepared = task.prepare(DataPaths(None, root / "data"))
    torch.manual_seed(0)
    model = build("transformer", width=16, layers=1, heads=2, hidden=16, **prepared.needs)
    model.save(root / "model", tokenizer=prepared.tokenizer.to_json())
    (root / "config.toml").write_text("")
    return root


def lines(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    code = main(["translate", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert code == 0 and not err
    return out.removesuffix("\n").split("\n")


TEXTS = ["one", "two three one two three", "", "three two"]


def test_a_line_for_a_line_in_order(capsys, run, tmp_path, monkeypatch):
    file = tmp_path / "texts"
    file.write_text("\n".join(TEXTS) + "\n")
    found = lines(capsys, run, "--file", file, "--beams", 2, "--batch", 8)
    assert len(found) == 4 and found[2] == ""
    assert found == [line for text in TEXTS for line in lines(capsys, run, text, "--beams", 2)]
    assert found == lines(capsys, run / "model", "--file", file, "--beams", 2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert found == lines(capsys, run, "--file", "-", "--beams", 2)


def test_json_has_source_and_text(capsys, run):
    rows = json.loads("\n".join(lines(capsys, run, *TEXTS, "--beams", 1, "--alpha", 0, "--json")))
    assert [row["source"] for row in rows] == TEXTS
    assert set(rows[0]) == {"source", "text", "logprob", "reason"} and rows[0]["logprob"] < 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "one"], "there is no folder or file nowhere; give the folder of a model"),
        (["RUN"], "give a text to translate"),
        (["RUN", "one", "--beams", "0"], "beams must be at least 1"),
        (["EMPTY", "one"], "run without a model yet"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(capsys, run, tmp_path, arguments, said):
    (tmp_path / "config.toml").write_text("")
    code = main(["translate", *(str({"RUN": run, "EMPTY": tmp_path}.get(each, each)) for each in arguments)])
    err = capsys.readouterr().err
    assert code == 2 and said in err and err.count("\n") == 1
