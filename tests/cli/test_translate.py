"""`longspan translate`, as a user types it."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from longspan import hub
from longspan.cli.main import main
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.decode import Beam, search_many
from longspan.decode.ensemble import Ensemble
from longspan.hub.use.generate import begin_of, ends_of
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
        (
            ["nowhere", "one"],
            "there is no folder or file nowhere, and no model nowhere in the local",
        ),
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


@pytest.fixture(scope="module")
def second(run: Path) -> Path:
    """Another model with the same tokenizer."""
    torch.manual_seed(1)
    options = json.loads((run / "model" / "config.json").read_text())["options"]
    model = build("transformer", **options)
    model.save(run / "second", tokenizer=(run / "model" / "tokenizer.json").read_text())
    return run / "second"


def test_an_ensemble_and_coverage_are_those_of_beam_search(capsys, run, second):
    first, other = hub.load(run), hub.load(second)
    beam = Beam(beams=3, alpha=0.6, beta=0.2)
    source = [first.tokenizer.encode("one two three").ids]
    begin, ends = begin_of(first, first.tokenizer), ends_of(first, first.tokenizer)
    for members, flags in (
        ([first], []),
        ([first, other], ["--ensemble", second]),
        ([first, other, first], ["--ensemble", second, "--ensemble", run]),
    ):
        model = Ensemble([each.model for each in members])
        best = search_many(model, source, begin, ends, options=beam)[0][0]
        rows = json.loads(
            "\n".join(lines(capsys, run, "one two three", "--beams", 3, "--coverage", 0.2, *flags, "--json"))
        )
        assert rows[0]["text"] == first.tokenizer.decode(best.tokens).strip()
        assert rows[0]["logprob"] == pytest.approx(best.logprob, rel=1e-6)
    alone = {
        flags: json.loads("\n".join(lines(capsys, run, "one", "--json", *flags))) for flags in ((), ("--ensemble", run))
    }
    assert alone[()][0]["text"] == alone["--ensemble", run][0]["text"]  # the mean of a model and itself


def test_models_that_cannot_be_together(capsys, run, tmp_path):
    tokenizer = learn(TokenizerOptions(kind="characters"), ["one two three eins zwei drei"])
    model = build("transformer", width=16, layers=1, heads=2, hidden=16, vocabulary=tokenizer.size)
    model.save(tmp_path / "other", tokenizer=tokenizer.to_json())
    assert main(["translate", str(run), "one", "--ensemble", str(tmp_path / "other")]) == 2
    error = capsys.readouterr().err
    assert "has another target tokenizer than" in error and "Traceback" not in error
    assert main(["translate", str(run), "one", "--coverage", "-1"]) == 2
    assert "option beta must be at least 0, not -1" in capsys.readouterr().err
