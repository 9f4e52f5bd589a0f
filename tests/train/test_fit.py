"""A run from its beginning to its end, and stopped in between: going on is the same to the bit."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from tests.train.toy import trainer

from longspan.errors import InvalidInput
from longspan.models import load
from longspan.train import checkpoint
from longspan.train.fit import train
from longspan.train.loop import Interrupted, Trainer


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in made.model.state_dict().items()}


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in trainer(folder).run.rows() if "loss" in row]


def stop_at(step: int) -> object:
    def show(made: Trainer, row: object) -> None:
        if made.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return show


def test_a_run_learns_and_leaves_a_model(tmp_path: Path) -> None:
    made = trainer(tmp_path, steps=60, log_every=1)
    figures = train(made)
    found = losses(tmp_path)
    assert len(found) == 60 and found[-1] < 0.5 * found[0]
    model = load(tmp_path / "model")
    assert all(torch.equal(tensor, weights(made)[name]) for name, tensor in model.state_dict().items())
    assert figures == made.progress.figures and figures["loss"] < found[0]


@pytest.mark.parametrize("step", [1, 5, 7], ids=["first", "last-of-epoch", "mid-epoch"])
@pytest.mark.parametrize("options", [{}, {"accumulate": 2, "ema": 0.9}], ids=["plain", "accumulated-averaged"])
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path, step: int, options: dict[str, float]) -> None:
    whole = trainer(tmp_path / "whole", log_every=1, evaluate_every=4, **options)
    train(whole)
    first = trainer(tmp_path / "cut", log_every=1, evaluate_every=4, **options)
    with pytest.raises(Interrupted):
        train(first, show=stop_at(step))
    assert first.progress.step == step
    torch.manual_seed(123)  # a new process begins elsewhere
    second = trainer(tmp_path / "cut", log_every=1, evaluate_every=4, **options)
    train(second, resume=True)
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(second)[name]), name
    assert whole.progress == second.progress


def test_uneven_micro_batches_give_the_gradient_of_the_whole(tmp_path: Path) -> None:
    found = []
    for accumulate in (1, 3):
        made = trainer(tmp_path, dropout=0.0, steps=1, accumulate=accumulate)
        made.model.double()
        made.optimizer.step = lambda: None  # the gradients are what is looked at
        made.optimizer.zero_grad = lambda set_to_none: None
        row = next(made.updates())
        found.append([row["loss"], *(parameter.grad for parameter in made.model.parameters())])
    for one, many in zip(*found):
        torch.testing.assert_close(one, many, rtol=0, atol=1e-12)


def test_the_newest_whole_checkpoint_is_used_and_that_is_said(tmp_path: Path) -> None:
    first = trainer(tmp_path, save_every=4)
    with pytest.raises(Interrupted):
        train(first, show=stop_at(9))
    newest = checkpoint.every(first.run.checkpoints)[0]
    assert newest.name == "00000009"
    file = newest / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    said: list[str] = []
    train(trainer(tmp_path, save_every=4), resume=True, say=said.append)
    assert str(file) in said[0] and said[1] == "resuming from step 8"


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    train(trainer(tmp_path))
    file = tmp_path / "checkpoints" / "00000012" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"optimizer\.safetensors was changed"):
        checkpoint.check(file.parent)


def test_missing_randomness_is_an_error_unless_inexactness_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(trainer(tmp_path), show=stop_at(3))
    folder = tmp_path / "checkpoints" / "00000003"
    (folder / "random-0.safetensors").unlink()
    listed = folder / "manifest.json"
    kept = {name: facts for name, facts in json.loads(listed.read_text()).items() if name != "random-0.safetensors"}
    listed.write_text(json.dumps(kept))
    with pytest.raises(InvalidInput, match=r"random-0\.safetensors is missing.*--inexact"):
        train(trainer(tmp_path), resume=True)
    train(trainer(tmp_path), resume=True, inexact=True)


def test_a_folder_is_used_by_one_run_at_a_time(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    with first.run.held(), pytest.raises(InvalidInput, match=f"in use by process {os.getpid()}"):
        train(trainer(tmp_path))


def test_a_run_that_is_there_is_not_begun_again(tmp_path: Path) -> None:
    train(trainer(tmp_path, steps=2))
    with pytest.raises(InvalidInput, match="has a run already"):
        train(trainer(tmp_path, steps=2))
