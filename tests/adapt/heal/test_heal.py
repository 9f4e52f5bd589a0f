"""Whole runs: interrupted ones resume to the bit, the output is whole or not there, and the verdict is printed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.adapt.heal.small import write_all, write_teacher
from tests.train.starting import environment

from longspan.adapt.heal import HealOptions, heal
from longspan.adapt.heal.heal import Healed
from longspan.adapt.heal.pair import read_pair
from longspan.adapt.heal.run import Progress
from longspan.adapt.heal.table import compare
from longspan.adapt.heal.texts import Texts
from longspan.adapt.swap_report import NOT_USED
from longspan.cli.main import main
from longspan.errors import InvalidInput
from longspan.models import folder
from longspan.train.loop import Interrupted

OPTIONS = HealOptions(length=24, batch=2, held_out=2, tokens=480, measurements=3)


def healed(root: Path, out: str, options: HealOptions = OPTIONS, **more: Any) -> Healed:
    paths = {"teacher": root / "teacher", "data": root / "text.txt", "out": root / out}
    return heal(root / "swapped", options=options, decode_lengths=(), **paths, **more)


@pytest.fixture(scope="module", autouse=True)
def few_trials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longspan.adapt.heal.table.TRIALS", 1)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, few_trials: None) -> Path:
    place = tmp_path_factory.mktemp("heal")
    write_all(place)
    healed(place, "whole")
    return place


def same(a: Path, b: Path) -> bool:
    first, second = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_the_output_is_a_plain_folder_with_its_record(root: Path) -> None:
    model = folder.load(root / "whole")
    assert model.options == folder.load(root / "swapped").options
    assert not same(root / "whole", root / "swapped")
    record = json.loads((root / "whole" / "heal.json").read_text())
    assert record["tokens"] == {"1": 240, "2": 240}
    assert set(record["table"]["models"]) == {"teacher", "swapped", "healed"}
    assert not (root / "whole.state").exists()
    models = record["table"]["models"]
    assert models["healed"]["loss"] <= models["swapped"]["loss"]
    assert models["healed"]["copied"] is not None and record["table"]["copies"] > 0
    energy = record["energy"]
    assert energy["joules"] > 0 and energy["by"]
    assert energy["kg_co2e"] == pytest.approx(energy["joules"] / 3.6e6 * energy["pue"] * energy["kg_per_kwh"])
    assert models["teacher"]["window_off"] is None and models["healed"]["window_off"] is not None


@pytest.mark.parametrize("stage", ["1", "2"])
def test_a_stopped_run_resumes_to_the_bit(root: Path, stage: str) -> None:
    out = f"stopped{stage}"

    def stop(progress: Progress) -> None:
        if progress.stage == stage and progress.step < progress.steps:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        healed(root, out, show=stop)
    assert not (root / out).exists() and (root / f"{out}.state").is_dir()
    saved = next((root / f"{out}.state").glob("*/position.json"))
    before = json.loads(saved.read_text())["position"]["energy"]["joules"]
    lines: list[str] = []
    again = healed(root, out, say=lines.append)
    assert again.record["energy"]["joules"] > before > 0  # both sessions together
    assert lines[0].startswith(f"resuming stage {stage} at step ")
    assert same(root / out, root / "whole")
    whole = json.loads((root / "whole" / "heal.json").read_text())
    assert again.record["history"] == whole["history"]


def test_a_killed_run_resumes_to_the_bit(root: Path) -> None:
    """SIGKILL right after a checkpoint of stage 2 was written."""
    code = (
        "import os, signal\n"
        "from longspan.adapt.heal import run, heal, HealOptions\n"
        "save, seen = run.Run.save, []\n"
        "def killing(self, position, *rest):\n"
        "    save(self, position, *rest)\n"
        "    if position.stage == '2' and position.step >= 2:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "run.Run.save, run.SAVE_EVERY = killing, -1.0\n"
        f"heal({str(root / 'swapped')!r}, teacher={str(root / 'teacher')!r}, data={str(root / 'text.txt')!r},\n"
        f"  out={str(root / 'killed')!r}, decode_lengths=(),\n"
        "  options=HealOptions(length=24, batch=2, held_out=2, tokens=480, measurements=3))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (root / "killed").exists()
    healed(root, "killed")
    assert same(root / "killed", root / "whole")


def test_another_teacher_or_other_options_do_not_resume(root: Path, tmp_path: Path) -> None:
    for name in ("swapped", "teacher"):
        shutil.copytree(root / name, tmp_path / name)
    shutil.copy(root / "text.txt", tmp_path)
    with pytest.raises(Interrupted):
        healed(tmp_path, "out", show=lambda progress: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(InvalidInput, match=r"out\.state is of a run with another options"):
        healed(tmp_path, "out", HealOptions(length=24, batch=2, held_out=2, tokens=960, measurements=3))
    shutil.rmtree(tmp_path / "teacher")
    write_teacher(tmp_path / "teacher", seed=5)
    with pytest.raises(InvalidInput, match="another teacher"):
        healed(tmp_path, "out", HealOptions(length=24, batch=2, held_out=2, tokens=480, measurements=3, stage="2"))


def test_a_window_has_no_stage_1(root: Path, tmp_path: Path) -> None:
    write_all(tmp_path, [{"name": "window", "window": 4, "sinks": 1}])
    result = healed(tmp_path, "out")
    assert result.record["tokens"] == {"2": 480} and result.table.verdict is None


def test_the_verdict_on_a_hybrid_without_a_linear_part(root: Path, tmp_path: Path) -> None:
    """With a very large share of the window nothing of the linear part is left."""
    pair = read_pair(root / "swapped", root / "teacher")
    for name, parameter in pair.student.named_parameters():
        if name.endswith(("query_map", "key_map")):
            parameter.data.mul_(200)  # sharp features that have nothing in common
        elif name.endswith("mix"):
            parameter.data.fill_(30.0)
    texts = Texts(root / "text.txt", pair.tokenizer, length=24, held_out=2)
    losses = {"teacher": 0.0, "swapped": 0.0, "healed": 0.0, "stage 1": 0.0}
    for mixer in pair.mixers(pair.student):
        mixer.mechanism.parts = "window"  # what the linear part gives is 0
    before = compare(pair, root / "swapped", texts, losses, decode_lengths=(), say=lambda line: None)
    assert before.verdict is not None and before.verdict.sentence == NOT_USED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "soon"], "a budget is a time above 0 such as 90s, 60m or 1.5h, not 'soon'"),
        (["--data", "EMPTY"], "is empty"),
        (["--data", "NONE"], "there is no text file"),
        (["--teacher", "WIDE"], "another architecture; give the model that was swapped"),
        (["--teacher", "WORDS"], "have different tokenizers"),
        (["--teacher", "SWAPPED"], "so there is nothing to heal"),
        (["--teacher", "MISSING"], "MISSING"),
        (["--out", "EMPTY"], "exists already; give another --out"),
        (["--length", "60"], "give more text, a smaller length or fewer held-out texts"),
        (["--lengths", "a"], "--lengths are numbers from 1 on"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    root: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments == ["--length", "60"]:
        arguments = ["--length", "60", "--held-out", "4000"]
    (tmp_path / "EMPTY").write_text("\n")
    write_teacher(tmp_path / "WIDE", width=32)
    from longspan.data.tokenizers.learn import TokenizerOptions, learn

    other = learn(TokenizerOptions(kind="characters", special=False), ["abc"])
    folder.load(root / "teacher").save(tmp_path / "WORDS", tokenizer=other.to_json())
    shutil.copytree(root / "swapped", tmp_path / "SWAPPED")
    given = {"--teacher": str(root / "teacher"), "--data": str(root / "text.txt"), "--out": str(tmp_path / "out")}
    for flag, value in zip(arguments[::2], arguments[1::2]):
        given[flag] = str(tmp_path / value) if value.isupper() else value
    code = main(["heal", str(root / "swapped"), *(part for pair in given.items() for part in pair)])
    captured = capsys.readouterr()
    assert code == 2 and message in captured.err and len(captured.err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("out*"))


def test_the_command_prints_the_table(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = {"--teacher": root / "teacher", "--data": root / "text.txt", "--out": tmp_path / "out", "--tokens": 96}
    sizes = {"--length": 24, "--batch": 2, "--held-out": 2, "--lengths": "64"}
    texts = [str(part) for pair in {**flags, **sizes}.items() for part in pair]
    assert main(["heal", str(root / "swapped"), *texts]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split() == ["teacher", "swapped", "healed"] and lines[1].startswith("loss ")
    assert any(line.startswith("state after 64") for line in lines)
    assert "stage 2, step 1 of 1: loss" in captured.err and "tokens/s" in captured.err
    assert "Healed model" in (tmp_path / "out" / "report.html").read_text()
