"""Two real processes: the same losses as one, the same figures, checkpoints that go on with either number."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.train.starting import child, finish, longspan, losses, recipe, result, same, start
from tests.train.toy import trainer

from longspan.train.fit import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    train(trainer(folder, dropout=0.0, log_every=1, evaluate_every=4))
    return folder


def figures(folder: Path) -> dict[str, float]:
    return trainer(folder).run.rows()[-1]["held_out"]


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate": 3}, {"shard": True, "accumulate": 2, "ema": 0.9, "recompute": True}],
    ids=["ddp", "accumulated", "sharded"],
)
def test_losses_are_those_of_one_process(alone: Path, tmp_path: Path, options: dict[str, object]) -> None:
    found = child(tmp_path, world=2, dropout=0.0, log_every=1, evaluate_every=4, **options)
    assert [code for code, _, _ in found] == [0, 0], found
    assert losses(tmp_path) == pytest.approx(losses(alone), rel=1e-5)
    if "ema" not in options:
        assert figures(tmp_path) == pytest.approx(figures(alone), rel=1e-5)
    else:  # the running mean was looked at, whole
        other = trainer(tmp_path / "mean", dropout=0.0, log_every=1, evaluate_every=4, ema=0.9)
        train(other)
        assert figures(tmp_path) == pytest.approx(other.progress.figures, rel=1e-5)


@pytest.mark.parametrize("shard", [False, True], ids=["ddp", "sharded"])
def test_killed_and_resumed_is_the_same_to_the_bit(tmp_path: Path, shard: bool) -> None:
    options = {"log_every": 1, "save_every": 5, "shard": shard, "ema": 0.5}
    child(tmp_path / "whole", world=2, **options)
    killed = child(tmp_path / "cut", world=2, kill=8, **options)
    assert [code for code, _, _ in killed] == [-9, -9]
    went_on = child(tmp_path / "cut", world=2, resume=True, **options)
    assert [code for code, _, _ in went_on] == [0, 0], went_on
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    assert same(result(tmp_path / "whole"), result(tmp_path / "cut"))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_process_stops_all_after_the_same_step(tmp_path: Path, rank: int) -> None:
    found = child(tmp_path, world=2, terminate=4, rank=rank, steps=200, shard=rank == 1)
    assert [code for code, _, _ in found] == [143, 143], found
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert saved.name == "00000005"  # the step after the signal, in which it was told to all
    assert {path.name for path in saved.glob("random-*")} == {"random-0.safetensors", "random-1.safetensors"}
    # With another number of processes it cannot be resumed bit-exactly, and says so.
    ((code, _, errors),) = child(tmp_path, resume=True)
    assert code == 1 and "there are 1 processes, but were 2" in errors and "--inexact" in errors
    ((code, _, errors),) = child(tmp_path, resume=True, inexact=True, steps=8, log_every=1)
    assert code == 0, errors
    assert list(losses(tmp_path)) == [6, 7, 8]


def test_the_command_under_torchrun(tmp_path: Path) -> None:
    made = recipe(tmp_path, dropout=0.0)
    ((code, _, errors),) = longspan("train", str(made), "--out", str(tmp_path / "one"))
    assert code == 0, errors
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "longspan", "train")
    ((code, output, errors),) = finish(start(*torchrun, str(made), "--out", str(tmp_path / "two")))
    assert code == 0, errors
    assert output.count("model: loss") == 1  # one process speaks
    assert "Warning" not in errors
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_what_each_process_carries_is_saved_and_put_back(tmp_path: Path) -> None:
    made = recipe(tmp_path)
    text = made.read_text().replace('"decoder"', '"recurrent"').replace("heads = 2\n", "").replace("hidden = 32\n", "")
    made.write_text(text.replace("batch = 6", "batch = 6\nstreams = true"))
    folder = tmp_path / "run"
    found = longspan("train", str(made), "--out", str(folder), "--train.save_every", "7", world=2)
    assert [code for code, _, _ in found] == [0, 0], found
    before, weights = losses(folder), result(folder)
    assert (folder / "checkpoints" / "00000007" / "carried-1.safetensors").is_file()
    shutil.rmtree(folder / "checkpoints" / "00000012")
    shutil.rmtree(folder / "model")
    found = longspan("resume", str(folder), world=2)
    assert [code for code, _, _ in found] == [0, 0], found
    assert losses(folder) == before and same(result(folder), weights)
    sessions = [json.loads(line) for line in (folder / "sessions.jsonl").read_text().splitlines()]
    assert [row["processes"] for row in sessions] == [2, 2]
    for energy in (row["energy"] for row in sessions):  # of both processes
        assert energy["joules"] > 0 and "2 processes on 1 machines" in energy["by"]


def test_what_is_wrong_is_said_once_and_stops_all(tmp_path: Path) -> None:
    made = recipe(tmp_path)
    (tmp_path / "text.txt").unlink()
    found = longspan("train", str(made), "--out", str(tmp_path / "run"), world=2)
    assert [code for code, _, _ in found] == [2, 2], found
    said = "".join(errors for _, _, errors in found)
    assert said.count("there is no file") == 1 and "Traceback" not in said


def signalled(tmp_path: Path, **given: Any) -> list[tuple[int, str, str]]:
    command = ["train", str(recipe(tmp_path)), "--out", str(tmp_path / "run"), "--train.steps", "1000000"]
    return finish(start("tests/train/signalled.py", json.dumps(given), *command, world=2))


def test_ctrl_c_is_one_signal_though_torchrun_passes_it_on(tmp_path: Path) -> None:
    """The terminal sends it to every process, and torchrun once more."""
    first, second = signalled(tmp_path, step=4, rank=-1, send=[signal.SIGINT, signal.SIGINT])
    assert (first[0], second[0]) == (130, 130), (first, second)
    said = first[2].splitlines()
    assert said[-1] == f"saved at step 5; continue with: longspan resume {tmp_path / 'run'}"
    assert "saved" not in second[2]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["00000005"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_dies_is_one_line_of_the_other(tmp_path: Path, rank: int) -> None:
    ended = signalled(tmp_path, step=4, rank=rank, send=[signal.SIGKILL])
    assert ended[rank][0] == -signal.SIGKILL
    code, _, errors = ended[1 - rank]
    line = errors.splitlines()[-1]
    assert code == 2 and "Traceback" not in errors, errors
    assert line == (
        "longspan: another of the 2 processes ended, so this one stops; the checkpoints are complete: "
        f"longspan resume {tmp_path / 'run'}"
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_whose_partner_never_comes_ends(tmp_path: Path, rank: int) -> None:
    command = ["train", str(recipe(tmp_path)), "--out", str(tmp_path / "run")]
    given = json.dumps({"step": 0, "rank": 0, "send": [], "joining": 2})
    started = start("tests/train/signalled.py", given, *command, world=2)
    started[1 - rank].kill()  # before it has said anything
    ended = finish(started)
    code, _, errors = ended[rank]
    assert code == 2 and "Traceback" not in errors, errors
    assert errors.splitlines()[-1].startswith(
        f"longspan: process {rank} of 2 could not reach the others within 2 seconds: has one of them ended?"
    )
