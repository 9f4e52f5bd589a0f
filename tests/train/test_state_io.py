"""What a model remembers from batch to batch is saved and put back to the bit."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import longspan.attention.mechanisms.window  # noqa: F401  # its state is registered
from longspan.attention.state import Rows, State, stored_name
from longspan.data.text.blocks import Streams
from longspan.data.text.token_files import write_tokens
from longspan.errors import InvalidInput
from longspan.models import build
from longspan.tasks.language import NextToken
from longspan.train.fit import train
from longspan.train.loop import Interrupted, Trainer
from longspan.train.options import TrainOptions
from longspan.train.run import Run
from longspan.train.schedule import Schedule
from longspan.train.state_io import flatten_state, restore_state

MODELS: dict[str, dict[str, Any]] = {
    "transformer_xl": {"width": 16, "layers": 2, "heads": 2, "segment": 5, "memory": 7},
    "compressive": {"width": 16, "layers": 2, "heads": 2, "segment": 5, "memory": 5, "slots": 4, "mask_empty": True},
    "recurrent": {"width": 16, "layers": 2, "cell": "lstm"},
    "decoder": {"width": 16, "layers": 2, "heads": 2, "attention": "linear"},
}


def trainer(folder: Path, name: str, tokens: Path, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = build(name, vocabulary=11, dropout=0.1, **MODELS[name])
    file = write_tokens(tokens, [[(number * number) % 11 for number in range(160)]], vocabulary=11)
    data = Streams(file, 5, 4)  # 8 batches an epoch, the last one shorter
    given = {"steps": 14, "log_every": 1, "schedule": Schedule(rate=1e-2), **options}
    return Trainer(Run(folder), model, data, NextToken(streams=True), TrainOptions(**given), held_out=data)


@pytest.mark.parametrize("step", [3, 8], ids=["mid-epoch", "last-of-epoch"])
@pytest.mark.parametrize("name", list(MODELS))
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path, name: str, step: int) -> None:
    def show(made: Trainer, row: object) -> None:
        if made.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    whole = trainer(tmp_path / "whole", name, tmp_path / "tokens", accumulate=2)
    train(whole)
    with pytest.raises(Interrupted):
        train(trainer(tmp_path / "cut", name, tmp_path / "tokens", accumulate=2), show=show)
    torch.manual_seed(99)
    second = trainer(tmp_path / "cut", name, tmp_path / "tokens", accumulate=2)
    train(second, resume=True)
    found = [[row["loss"] for row in made.run.rows() if "loss" in row] for made in (whole, second)]
    assert found[0] == found[1] and len(found[0]) == 14
    other = second.model.state_dict()
    assert all(torch.equal(tensor, other[key]) for key, tensor in whole.model.state_dict().items())
    assert whole.progress == second.progress


def test_without_what_was_carried_it_would_have_been_another_run(tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""
    found = []
    for forget in (False, True):
        made = trainer(tmp_path / str(forget), "recurrent", tmp_path / "tokens")
        rows = []
        for row in made.updates():
            rows.append(row["loss"])
            if forget:
                made.carried = {}
        found.append(rows)
    assert found[0][0] == found[1][0] and found[0][1] != found[1][1]


def test_a_missing_memory_is_an_error_unless_inexactness_is_asked_for(tmp_path: Path) -> None:
    train(trainer(tmp_path / "run", "recurrent", tmp_path / "tokens", steps=3))
    (tmp_path / "run" / "checkpoints" / "00000003" / "carried-0.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"carried-0\.safetensors is missing.*--inexact"):
        train(trainer(tmp_path / "run", "recurrent", tmp_path / "tokens", steps=5), resume=True)
    train(trainer(tmp_path / "run", "recurrent", tmp_path / "tokens", steps=5), resume=True, inexact=True)


def test_states_are_taken_apart_and_put_together() -> None:
    model = build("decoder", vocabulary=11, width=16, layers=2, heads=2).eval()
    _, state = model.extend(torch.tensor([[1, 2, 3]]), model.start(1))
    tensors: dict[str, torch.Tensor] = {}
    shape = json.loads(json.dumps(flatten_state({0: state, 1: None}, tensors)))
    back = restore_state(shape, tensors, "here")
    one, _ = model.extend(torch.tensor([[4, 5]]), state)
    other, _ = model.extend(torch.tensor([[4, 5]]), back[0])
    assert torch.equal(one, other) and back[1] is None


def test_detached_states_have_no_history() -> None:
    rows = Rows.empty(1).append(torch.ones(1, 1, 2, 3, requires_grad=True) * 2)
    assert rows.value.requires_grad and not rows.detach().value.requires_grad
    assert torch.equal(rows.detach().value, rows.value)


@pytest.mark.parametrize("name", ["os:system", "longspan.train.run:Run", "longspan.nothing:State", "builtins:eval"])
def test_nothing_but_a_state_is_ever_made(name: str) -> None:
    with pytest.raises(InvalidInput, match="here is not a saved state of a model"):
        restore_state({"state": name, "fields": {"folder": {"value": "x"}}}, {}, "here")


def test_names_of_early_versions_are_read() -> None:
    """They named the module, which has moved since, and some classes had other names."""
    model = build("transformer_xl", vocabulary=11, width=16, layers=1, heads=2, segment=5, memory=7).eval()
    _, memory = model(torch.tensor([[1, 2, 3]]))
    tensors: dict[str, torch.Tensor] = {}
    shape = flatten_state(memory, tensors)
    assert shape["state"] == "SegmentMemory"
    layer = shape["fields"]["layers"]["tuple"][0]
    assert layer["state"] == "LayerMemory"
    shape["state"], layer["state"] = "longspan.models.transformer_xl:Memory", "longspan.nn.memory:LayerMemory"
    back = restore_state(shape, tensors, "here")
    assert type(back) is type(memory) and back.bytes == memory.bytes


def test_two_states_may_not_share_a_name() -> None:
    with pytest.raises(TypeError, match=r"longspan\.attention\.parts\.sliding_window and longspan\.made_up both have"):
        type("WindowState", (State,), {"__module__": "longspan.made_up", "__qualname__": "WindowState"})
    plugin = type("WindowState", (State,), {"__module__": "mine", "__qualname__": "WindowState"})
    assert stored_name(plugin) == "mine:WindowState"
