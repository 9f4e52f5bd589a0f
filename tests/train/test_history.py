"""What a run has done so far, from its files: times, means, sizes; also of runs that are unfinished or damaged."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from longspan.errors import InvalidInput
from longspan.train.history import final_metrics, log_session, read_history
from longspan.train.run import Run

ROWS = [
    {"step": 2, "loss": 4.0, "seconds": 0.5, "count": 10.0},
    {"step": 4, "loss": 2.0, "seconds": 0.25, "count": 10.0},
    {"step": 4, "held_out": {"loss": 3.0, "accuracy": 0.5}},
    {"step": 6, "loss": None, "seconds": 0.25, "count": 20.0},
    {"step": 6, "held_out": {"loss": 2.5, "accuracy": 0.75}},
    {"step": 6, "result": {"test": {"bleu": 20.0}}},
]


def made_run(folder: Path, rows: list[dict[str, object]] = ROWS, *, finished: bool = True, task: str = "copy") -> Path:
    """The files of a run, without a training."""
    (folder / "checkpoints").mkdir(parents=True)
    table = f'[task]\nname = "algorithm"\nproblem = "{task}"\n[model]\nname = "decoder"\n[train]\nsteps = 6\nseed = 3\n'
    (folder / "config.toml").write_text(table)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / "model").mkdir()
        save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, folder / "model" / "model.safetensors")
    return folder


def test_times_losses_and_speed(tmp_path: Path) -> None:
    found = read_history(made_run(tmp_path / "run"))
    # Steps 1 and 2 took half a second each, steps 3 to 6 a quarter.
    assert [(point.step, point.seconds) for point in found.losses] == [(2, 1.0), (4, 1.5)]
    assert [(point.step, point.seconds) for point in found.evaluations] == [(4, 1.5), (6, 2.0)]
    # 0.1 · 4 over 0.1, and (0.9 · 0.4 + 0.1 · 2) over 0.19
    assert [point.metrics["loss"] for point in found.losses] == pytest.approx([4.0, 0.56 / 0.19])
    assert found.final == {"loss": 2.5, "accuracy": 0.75, "bleu": 20.0} == final_metrics(tmp_path / "run")
    assert found.speed == 40.0 and found.parameters == 17 and found.finished and found.notes == ()
    assert (found.step, found.seed, found.energy) == (6, 3, None)


def test_sessions_add_up(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    log_session(Run(folder), {"parameters": 12, "energy": {"joules": 30.0, "by": "modelled: 2 s of one core"}})
    log_session(Run(folder), {"parameters": 12, "energy": {"joules": 12.0, "by": "modelled: 1 s of one core"}})
    found = read_history(folder)
    assert found.parameters == 12 and found.energy == {"joules": 42.0, "by": "modelled"}
    log_session(Run(folder), {"parameters": 12, "energy": None})  # a part is not the whole
    assert read_history(folder).energy is None


def test_damaged_and_unfinished_runs_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", ROWS[:1], finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("{damaged\n[1, 2]\n")
    found = read_history(folder)
    assert found.notes == ("2 damaged lines of its metrics left out", "not finished", "no evaluation yet")
    assert found.parameters is None and found.final == {} and found.step == 2
    finished = made_run(tmp_path / "other")
    (finished / "model" / "model.safetensors").write_bytes(b"\x10" + b"\0" * 40)
    assert read_history(finished).notes[-1].endswith("model.safetensors cannot be read")
    with pytest.raises(InvalidInput, match=r"model is not a run: it has no config.toml"):
        read_history(finished / "model")
    with pytest.raises(InvalidInput, match=r"there is no folder .*nothing"):
        read_history(tmp_path / "nothing")
