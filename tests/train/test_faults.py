"""What can go wrong while a model is trained, really done: killed processes, full disks, damaged files, bad batches."""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.starting import ROOT, child, environment, losses, recipe, result, same
from tests.train.toy import trainer

from longspan import manifest
from longspan.cli.main import main
from longspan.errors import InvalidInput
from longspan.models import load
from longspan.train import checkpoint
from longspan.train.fit import train
from longspan.train.loop import Interrupted, Trainer


def saved(folder: Path) -> list[str]:
    return [path.name for path in checkpoint.every(folder / "checkpoints")]


# 1, 2: kill -9


@pytest.mark.slow
@pytest.mark.parametrize(("every", "step"), [(5, 8), (3, 8)], ids=["from-an-epoch's-last-batch", "from-mid-epoch"])
def test_killed_in_mid_training(tmp_path: Path, every: int, step: int) -> None:
    ((code, _, errors),) = child(tmp_path / "cut", log_every=1, save_every=every, kill=step)
    assert code == -signal.SIGKILL, errors
    whole, went_on = (trainer(tmp_path / name, log_every=1, save_every=every) for name in ("whole", "cut"))
    train(whole)
    said: list[str] = []
    train(went_on, resume=True, say=said.append)
    assert said[0] == f"resuming from step {step // every * every}"
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    assert same(result(tmp_path / "whole"), result(tmp_path / "cut"))


@pytest.mark.slow
def test_killed_in_mid_save(tmp_path: Path) -> None:
    ((code, _, errors),) = child(tmp_path / "cut", log_every=1, save_every=4, kill=8, kill_in_save=True)
    assert code == -signal.SIGKILL, errors
    kept = sorted(path.name for path in (tmp_path / "cut" / "checkpoints").iterdir())
    assert kept == ["00000004", "00000008.part"]  # the process died while it wrote
    said: list[str] = []
    train(trainer(tmp_path / "cut", log_every=1, save_every=4), resume=True, say=said.append)
    assert said[0] == "resuming from step 4"
    train(trainer(tmp_path / "whole", log_every=1, save_every=4))
    assert same(result(tmp_path / "whole"), result(tmp_path / "cut"))
    assert not list((tmp_path / "cut" / "checkpoints").glob("*.part"))


# 4, 5, 6, 7: damaged, missing and malicious files


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.safetensors", "progress.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "missing"])
def test_a_damaged_checkpoint_is_passed_over_and_written_again(tmp_path: Path, name: str, damage: str) -> None:
    train(trainer(tmp_path, steps=8, save_every=4))
    file = tmp_path / "checkpoints" / "00000008" / name
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 0x80  # in JSON no longer UTF-8
    changed = {"truncated": content[:-5], "empty": b"", "flipped": content}
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(changed[damage])
    said: list[str] = []
    train(trainer(tmp_path, steps=8, save_every=4), resume=True, say=said.append)
    assert said[0].startswith("skipped: ") and (str(file) in said[0] or name in said[0])
    assert said[1] == "resuming from step 4"
    checkpoint.check(file.parents[name.count("/")])  # that step was made again, and saved whole


def test_no_whole_checkpoint_is_one_clear_error(tmp_path: Path) -> None:
    train(trainer(tmp_path, steps=2))
    file = tmp_path / "checkpoints" / "00000002" / "optimizer.safetensors"
    file.write_bytes(b"")
    with pytest.raises(
        InvalidInput, match=r"no complete checkpoint to resume from: .*optimizer\.safetensors has 0 bytes"
    ):
        train(trainer(tmp_path, steps=4), resume=True)


class Bomb:
    """What runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@pytest.fixture
def bomb(tmp_path: Path) -> Iterator[bytes]:
    mark = tmp_path / "it-ran"
    yield pickle.dumps(Bomb(mark))
    assert not mark.exists()


def test_the_bomb_is_one(tmp_path: Path) -> None:
    """Otherwise the tests with it would pass for nothing."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "it-ran")))
    assert (tmp_path / "it-ran").exists()


@pytest.mark.parametrize("name", ["model/model.safetensors", "optimizer.safetensors", "random-0.safetensors"])
def test_a_malicious_pickle_as_a_checkpoint(tmp_path: Path, bomb: bytes, name: str) -> None:
    train(trainer(tmp_path, steps=2))
    folder = tmp_path / "checkpoints" / "00000002"
    (folder / name).write_bytes(bomb)
    listed = json.loads((folder / "manifest.json").read_text())
    listed[name] = manifest.facts(folder / name)  # whoever forges the file forges its sum too
    (folder / "manifest.json").write_text(json.dumps(listed))
    with pytest.raises(InvalidInput, match="cannot be read"):
        train(trainer(tmp_path, steps=4), resume=True)


def test_a_malicious_pickle_as_a_model(tmp_path: Path, bomb: bytes) -> None:
    train(trainer(tmp_path, steps=2))
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "model.bin").write_bytes(bomb)
    with pytest.raises(InvalidInput, match=r"model\.bin is a pickle, which is never read"):
        load(tmp_path / "model")


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run of the small recipe, by its command."""
    folder = tmp_path / "run"
    assert main(["train", str(recipe(tmp_path)), "--out", str(folder), "--train.steps", "2"]) == 0
    return folder


def test_a_malicious_pickle_as_data_or_tokenizer(
    begun: Path, tmp_path: Path, bomb: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = begun / "model" / "tokenizer.json"
    tokenizer.write_bytes(bomb)
    assert main(["evaluate", str(begun)]) == 2
    assert "tokenizer.json" in capsys.readouterr().err
    (tmp_path / "text.txt").write_bytes(bomb)
    assert main(["train", str(tmp_path / "small.toml"), "--out", str(tmp_path / "other")]) == 2
    assert "text.txt" in capsys.readouterr().err


# 8: a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room, gone afterwards."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=384k", "tmpfs", place], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """Each checkpoint of the toy has about 90 kB; with what else is there, no third one fits."""
    (small_disk / "ballast").write_bytes(bytes(150_000))
    options = {"steps": 12, "save_every": 2, "log_every": 1, "keep": 9}
    with pytest.raises(
        InvalidInput, match=r"could not be written: .*(No space|os error 28).*earlier ones are complete"
    ):
        train(trainer(small_disk / "run", **options))
    kept = saved(small_disk / "run")
    assert kept and int(kept[0]) < 12
    for name in kept:
        checkpoint.check(small_disk / "run" / "checkpoints" / name)
    assert not list((small_disk / "run" / "checkpoints").glob("*.part"))
    # Elsewhere there is room.
    (small_disk / "run").rename(small_disk / "moved")
    subprocess.run(["cp", "-r", small_disk / "moved", tmp_path / "moved"], check=True)
    train(trainer(tmp_path / "moved", **options), resume=True)
    train(trainer(tmp_path / "whole", **options))
    assert same(result(tmp_path / "whole"), result(tmp_path / "moved"))


def test_a_disk_that_is_full_before_the_first_save(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = recipe(tmp_path)
    (small_disk / "ballast").write_bytes(bytes(370_000))
    room = os.statvfs(small_disk)
    (small_disk / "rest").write_bytes(bytes(room.f_bavail * room.f_frsize - 3 * 4096))  # for the lock, and little more
    assert main(["train", str(made), "--out", str(small_disk / "run")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "No space left on device" in lines[0] and str(small_disk / "run") in lines[0], lines
    assert not (small_disk / "run").exists()
    (small_disk / "rest").unlink()
    (small_disk / "ballast").write_bytes(bytes(310_000))  # for the data, but for no checkpoint
    assert main(["train", str(made), "--out", str(small_disk / "run"), "--train.steps", "2"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "00000002 could not be written" in line and line.endswith("Make room and start the run again"), line
    (small_disk / "ballast").unlink()
    assert main(["train", str(made), "--out", str(small_disk / "run"), "--train.steps", "2"]) == 0


@pytest.mark.parametrize("kind", ["folder", "unreadable"])
def test_a_recipe_that_cannot_be_read(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.toml"
    if kind == "folder":
        path.mkdir()
        resume = f"to continue a run: longspan resume {path}; to train on its files: --task NAME --train {path}"
        said = f"longspan: {path} is a folder, but `longspan train` needs a TOML file; {resume}"
    else:
        path.symlink_to(path)
        said = f"longspan: {path} cannot be read: Too many levels of symbolic links"
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.splitlines() == [said]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "damage",
    [b"\xff\xfe not UTF-8\n", b'{"step": 3, "loss"\n', b"[1, 2]\n", b'{"step": "x"}\n', b"\0\0\0\n"],
    ids=["not-utf-8", "cut", "no-table", "no-step", "zeros"],
)
def test_damaged_metrics_do_not_stop_a_resume(tmp_path: Path, damage: bytes) -> None:
    train(trainer(tmp_path, steps=4, log_every=1, save_every=2))
    file = tmp_path / "metrics.jsonl"
    first, rest = file.read_bytes().split(b"\n", 1)
    file.write_bytes(first + b"\n" + damage + rest + b'{"step": 4, "lo')  # and the last line was being written
    said: list[str] = []
    train(trainer(tmp_path, steps=6, log_every=1), resume=True, say=said.append)
    assert said[0] == f"dropped 1 damaged line of {file}" and said[1] == "resuming from step 4"
    assert list(losses(tmp_path)) == [1, 2, 3, 4, 5, 6]


# 9, 10: numbers that go wrong


def spoil(made: Trainer, wrong: Sequence[int], factor: float) -> Trainer:
    """The losses of these updates, counted from 1, are so many times as large."""
    inner, calls = made.step.objective.loss, 0

    def loss(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        found = inner(*given)
        return type(found)(found.total * factor, found.parts) if calls in wrong else found

    made.step.objective.loss = loss
    return made


def test_an_infinite_gradient_is_skipped(tmp_path: Path) -> None:
    made = spoil(trainer(tmp_path, steps=6, log_every=1, spike=2.0), [3], float("nan"))
    before: dict[int, torch.Tensor] = {}
    said: list[str] = []
    train(
        made,
        say=said.append,
        show=lambda made, row: before.update({made.progress.step: made.model.embedding.weight.detach().clone()}),
    )
    assert torch.equal(before[2], before[3]) and not torch.equal(before[3], before[4])
    assert said[0] == "step 3: the loss is nan; skipped this update"
    assert losses(tmp_path)[3] is None  # JSON has no NaN
    assert all(parameter.isfinite().all() for parameter in made.model.parameters())
    assert made.progress.skipped == 0 and made.progress.mean_loss is not None


def test_after_too_many_the_run_stops_and_names_the_batch(tmp_path: Path) -> None:
    made = spoil(trainer(tmp_path, steps=20, bad_steps=3), range(4, 20), float("inf"))
    wanted = r"not finite for 3 steps, the last in batch 0 of epoch 1; .* look at its examples \d+, "
    with pytest.raises(InvalidInput, match=wanted):
        train(made)


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rate = ["--train.schedule.rate", "1e39", "--train.schedule.kind", "constant"]
    arguments = ["train", str(recipe(tmp_path)), "--out", str(tmp_path / "run"), *rate]
    for steps in ("1", "5"):
        assert main([*arguments, "--train.steps", steps]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("longspan: the weights are not finite at step ") and "lower the learning rate" in line
        assert not saved(tmp_path / "run") and not (tmp_path / "run" / "model").exists()


def test_memory_that_runs_out_is_said_with_the_batch(tmp_path: Path) -> None:
    made = trainer(tmp_path, steps=3, accumulate=2)
    inner = made.step.objective.loss

    def loss(*given: Any) -> Any:
        if made.progress.step == 1:
            torch.empty(2**60)  # the allocator's own error
        return inner(*given)

    made.step.objective.loss = loss
    wanted = r"^out of memory in batch 1 of epoch 0, with 3 examples of length 7 at a time; make \[task\] batch"
    with pytest.raises(InvalidInput, match=wanted):
        train(made)


def test_a_model_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model.width", str(2**40), "--model.hidden", str(2**40)]
    assert main(["train", str(recipe(tmp_path)), "--out", str(tmp_path / "run"), *given]) == 2
    assert "[model]: out of memory" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_spike_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    train(spoil(trainer(tmp_path, steps=6, spike=3.0), [4], 100.0), say=said.append)
    assert len([line for line in said if line.startswith("step 4: the loss is")]) == 1


def test_a_spike_is_undone_where_that_is_wanted(tmp_path: Path) -> None:
    made = spoil(trainer(tmp_path, steps=8, save_every=2, log_every=1, spike=3.0, roll_back=True), [6], 100.0)
    said: list[str] = []
    train(made, say=said.append)
    assert said[1] == "went back to the weights of step 4; continuing with the next batch"
    rows = made.run.rows()
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 9))
    assert {"step": 4, "rolled_back_from": 6} in rows
    assert made.progress.step == 8 and made.progress.batch + 5 * made.progress.epoch == 10  # two batches were left out


def test_a_run_that_jumps_again_and_again_stops(tmp_path: Path) -> None:
    options = {"steps": 50, "save_every": 2, "spike": 3.0, "roll_back": True, "bad_steps": 2}
    with pytest.raises(InvalidInput, match=r"the loss jumped 3 times after .*00000004"):
        train(spoil(trainer(tmp_path, **options), range(6, 99), 100.0))


# 18, 20: bad data and bad configurations


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "text.txt is empty"),
        (b"ab\xff\xfe", "text.txt, line 1: not UTF-8"),
        (b"a", "too few"),
        (None, "there is no file"),
    ],
    ids=["empty", "not-utf-8", "one-letter", "missing"],
)
def test_bad_data(tmp_path: Path, content: bytes | None, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = recipe(tmp_path)
    (tmp_path / "text.txt").unlink() if content is None else (tmp_path / "text.txt").write_bytes(content)
    assert main(["train", str(made), "--out", str(tmp_path / "run")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]
    assert not (tmp_path / "run").exists()


def test_a_refused_run_touches_nothing_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "run" / "data").mkdir(parents=True)
    (tmp_path / "run" / "data" / "mine").write_text("mine")
    made = recipe(tmp_path)
    assert main(["train", str(made), "--out", str(tmp_path / "run"), "--train.shard", "true"]) == 2
    assert (tmp_path / "run" / "data" / "mine").read_text() == "mine" and not (tmp_path / "run" / "lock").exists()
    assert main(["train", str(made), "--out", str(tmp_path / "new" / "run"), "--train.shard", "true"]) == 2
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--train.stepz", "3"], "has no option 'stepz': did you mean 'steps'?"),
        (["--train.steps", "many"], "--train.steps must be int or none, not 'many' (str)"),
        (["--train.steps=0"], "--train.steps must be at least 1, not 0"),
        (["--model.layerz", "3"], "'layerz': did you mean 'layers'?"),
        (["--model.name", "decodr"], "did you mean 'decoder'?"),
        (["--task.name", "langage"], "did you mean 'language'?"),
        (["--model.vocabulary", "5"], "vocabulary is 5, but the task needs"),
        (["--tran.steps", "3"], "there is no option 'tran.steps'"),
        (["--train.steps.more", "3"], "steps is a value, not a table"),
        (["--train.schedule", "3"], "--train.schedule must be Schedule"),
        (["--steps", "3"], "there is no option --steps"),
        (["--train.steps"], "--train.steps has no value"),
        (["--task.set", "tinyshakespeare"], "one of the two"),
        (["--data", "nowhere"], "there is no data folder nowhere"),
        (["--train.shard", "true"], "but there is only one; use torchrun"),
        (["--train.epochs", "inf"], "epochs must be above 0 and at most 1e+06, not inf"),
        (["--train.seed", str(2**70)], f"seed must fit into 64 bits, not {2**70}"),
        (["--train.optimizer.beta2", "1"], "beta2 must be at least 0 and below 1, not 1"),
        (["--train.optimizer.eps", "0.0"], "eps must be above 0, not 0.0"),
        (["--train.schedule.rate", "inf"], "rate must be a finite number, not inf"),
        (["--train.schedule.rate", "nan"], "rate must be at least 0, not nan"),
        (["--train.clip", "inf"], "clip must be a finite number, not inf"),
        (["--train.ema", "1.0"], "ema must be at least 0 and below 1, not 1.0"),
        (["--task.share", "nan"], "share must be 0 to 0.9, not nan"),
        (["--model.init_std", "inf"], "init_std must be a finite number, not inf"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_configuration_is_one_line(
    tmp_path: Path, given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(recipe(tmp_path)), "--out", str(tmp_path / "run"), *given]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0], lines
    assert not (tmp_path / "run").exists()  # no folder, and no lock in it


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[task", "is not TOML"),
        ("[tasks]", "did you mean 'task'?"),
        ("task = 3", "task must be a table"),
        ("", "[train]: give either steps or epochs"),
    ],
)
def test_a_bad_recipe_is_one_line(tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    for arguments in (["train", str(path), "--out", str(tmp_path / "run")], ["train", str(tmp_path / "none.toml")]):
        assert main(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and said in lines[0] and "there is no recipe" in lines[1]


def test_a_checkpoint_of_another_shape(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = begun / "config.toml"
    config.write_text(config.read_text().replace("width = 16", "width = 32"))
    assert main(["resume", str(begun)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "00000002" in line and "in the checkpoint and" in line and "in the model" in line


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_what_is_no_run(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(tmp_path)]) == 2
    assert main([command, str(tmp_path / "nowhere")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "is not a run: it has no config.toml" in first and "there is no folder" in second


def test_data_that_have_changed(begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text(text.read_text()[::-1])
    assert main(["resume", str(begun)]) == 2
    assert "the data are" in capsys.readouterr().err
    assert main(["resume", str(begun), "--inexact"]) == 0


# 21: Ctrl-C


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """On a terminal of its own, as a user has it."""
    made, folder = recipe(tmp_path), tmp_path / "a run"
    mine, its = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "longspan", "train", str(made), "--out", str(folder), "--train.steps", "1000000"],
        cwd=ROOT,
        env=environment(TERM="xterm", COLUMNS="200"),
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    shown = b""
    sent = False
    try:
        while True:
            try:
                part = os.read(mine, 4096)  # waits, and ends with the process
            except OSError:
                break
            if not part:
                break
            shown += part
            if not sent and "tokens/s" in shown.decode(errors="replace") and (folder / "metrics.jsonl").exists():
                process.send_signal(number)
                sent = True
        assert process.wait(timeout=60) == code
    finally:
        os.close(mine)
        if process.poll() is None:
            process.kill()
    text = shown.decode(errors="replace")
    assert f"continue with: longspan resume '{folder}'" in text and "Traceback" not in text
    assert "the first step" in text and "nan" not in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")  # the cursor is back
    (step,) = (int(name) for name in saved(folder))
    assert f"saved at step {step}" in text


# 22: two runs in one folder


def test_two_runs_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, folder = recipe(tmp_path), tmp_path / "run"
    first = trainer(folder)
    with first.run.held():
        before = sorted(path.name for path in folder.iterdir())
        assert main(["train", str(made), "--out", str(folder)]) == 2
        assert f"in use by process {os.getpid()}" in capsys.readouterr().err
        assert sorted(path.name for path in folder.iterdir()) == before  # nothing was touched
    with pytest.raises(Interrupted):
        train(first, show=lambda made, row: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["train", str(made), "--out", str(folder)]) == 2
    assert "has a run already" in capsys.readouterr().err
