"""A step that is skipped leaves nothing behind: carried memory and buffers are those before it, in every model."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from longspan.attention import registry as mechanisms
from longspan.data.base import Batch, Data
from longspan.errors import InvalidInput, LongspanError
from longspan.models import build
from longspan.models import registry as models
from longspan.models.base import CausalModel, Model
from longspan.tasks.base import Objective, TaskLoss
from longspan.tasks.language import NextToken
from longspan.train import checkpoint
from longspan.train.fit import train
from longspan.train.loop import Trainer
from longspan.train.options import TrainOptions
from longspan.train.run import Run
from longspan.train.schedule import Schedule
from longspan.train.state_io import flatten_state

LENGTH = 16  # a square, for mechanisms that read text as an image
CARRYING: dict[str, dict[str, Any]] = {
    "transformer_xl": {"width": 16, "layers": 2, "heads": 2, "segment": LENGTH, "memory": 8},
    "compressive": {"width": 16, "layers": 2, "heads": 2, "segment": LENGTH, "memory": LENGTH, "slots": 8},
    "recurrent": {"width": 16, "layers": 2, "cell": "lstm"},
    "decoder": {"width": 16, "layers": 2, "heads": 2, "hidden": 32},
    "universal_decoder": {"width": 16, "layers": 2, "heads": 2, "hidden": 32},
}
SMALL = {"performer": {"features": 8, "redraw_interval": 1}}  # so that the buffer does change


class Counts(Data):
    """Two rows that count on from batch to batch."""

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        return [[2 * place, 2 * place + 1] for place in range(6)]

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        rows = torch.stack([(number // 2 * LENGTH + 3 * number + torch.arange(LENGTH + 1)) % 11 for number in numbers])
        return {"ids": rows[:, :-1], "targets": rows[:, 1:]}

    def fingerprint(self) -> str:
        return "counts"


class SameToken(Objective):
    """What an encoder can learn of the same batches."""

    def count(self, batch: Batch) -> int:
        return batch["ids"].numel()

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        hidden = model(batch["ids"])
        return TaskLoss(cross_entropy(hidden.flatten(0, 1)[:, :11], batch["ids"].flatten(), reduction="sum"), {})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> Any:
        raise NotImplementedError


def trainer(folder: Path, model: Model, objective: Objective, **options: Any) -> Trainer:
    given = {"steps": 6, "log_every": 1, "schedule": Schedule(kind="constant", rate=1e-2), **options}
    return Trainer(Run(folder), model, Counts(), objective, TrainOptions(**given))


def language(folder: Path, name: str, **options: Any) -> Trainer:
    return trainer(
        folder, build(name, vocabulary=11, dropout=0.0, **CARRYING[name]), NextToken(streams=True), **options
    )


@contextmanager
def not_a_number(model: Model) -> Iterator[None]:
    """While it lasts, the first layer that is called gives NaN, from which everything after it is NaN too."""
    hooks = [
        layer.register_forward_hook(lambda layer, given, out: out * float("nan") if torch.is_tensor(out) else None)
        for layer in model.modules()
        if isinstance(layer, nn.Linear | nn.Embedding) or not list(layer.children())
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def remembered(made: Trainer) -> dict[str, Tensor]:
    """All that a step may change beside gradients: parameters, buffers and what is carried."""
    tensors: dict[str, Tensor] = {}
    flatten_state(made.carried, tensors)
    own = {**dict(made.model.named_parameters()), **dict(made.model.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in {**tensors, **own}.items()}


def skip_and_go_on(build_trainer: Callable[[], Trainer]) -> Trainer:
    """Two good steps, a bad one, a good one: the last is the same as if there had been no bad one."""
    trainers = []
    for _ in range(2):
        torch.manual_seed(3)
        trainers.append(build_trainer())
        updates = trainers[-1].updates()
        next(updates), next(updates)
    twin, made = trainers
    before = remembered(made)
    with not_a_number(made.model):
        bad = next(updates)
    assert math.isnan(bad["loss"]) and made.progress.skipped == 1
    after = remembered(made)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    twin.progress.step, twin.progress.batch = made.progress.step, made.progress.batch
    losses = []
    for each in (made, twin):
        torch.manual_seed(5)
        losses.append(next(each.updates())["loss"])
    assert losses[0] == losses[1] and math.isfinite(losses[0])
    return made


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", list(CARRYING))
def test_models_that_carry_state(tmp_path: Path, name: str, accumulate: int) -> None:
    assert skip_and_go_on(lambda: language(tmp_path, name, accumulate=accumulate)).carried


def test_there_is_no_other_model_that_carries_state() -> None:
    causal = {name: models.find(name) for name in models.names() if issubclass(models.find(name), CausalModel)}
    assert {name for name, cls in causal.items() if not cls.reads_source} | {"transformer_xl"} == set(CARRYING)


@pytest.mark.parametrize("mechanism", mechanisms.names())
def test_every_mechanism(tmp_path: Path, mechanism: str) -> None:
    shape = {"vocabulary": 11, "dropout": 0.0, "width": 16, "layers": 1, "heads": 2, "hidden": 32, "max_length": 512}
    attention = {"name": mechanism, **SMALL.get(mechanism, {})}

    def build_trainer() -> Trainer:
        try:
            return trainer(tmp_path, build("decoder", **shape, attention=attention), NextToken())
        except LongspanError:  # it reads in both directions only
            return trainer(tmp_path, build("encoder", **shape, attention=attention), SameToken())

    skip_and_go_on(build_trainer)


@pytest.mark.parametrize("name", ["transformer_xl", "compressive", "recurrent"])
def test_one_bad_batch_does_not_end_a_run(tmp_path: Path, name: str) -> None:
    made = language(tmp_path, name, bad_steps=2, save_every=3)
    said: list[str] = []
    inner = made.step.objective.loss

    def loss(model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        if made.progress.step != 2:
            return inner(model, batch, carried)
        with not_a_number(model):
            return inner(model, batch, carried)

    made.step.objective.loss = loss  # type: ignore[method-assign]
    train(made, say=said.append)
    assert said == ["step 3: the loss is nan; skipped this update"]
    for name in ("00000003", "00000006"):
        for file in (tmp_path / "checkpoints" / name).rglob("*.safetensors"):
            for key, tensor in checkpoint.read_tensors(file).items():
                assert not tensor.is_floating_point() or tensor.isfinite().all(), (file, key)


def test_a_loss_that_is_infinite_where_gradients_are_not_is_skipped_too(tmp_path: Path) -> None:
    made = language(tmp_path, "decoder", bad_steps=1)
    inner = made.step.objective.loss

    def loss(*given: Any) -> TaskLoss:
        found = inner(*given)
        return TaskLoss(found.total + float("inf"), found.parts, found.carried)

    made.step.objective.loss = loss  # type: ignore[method-assign]
    before = remembered(made)
    with pytest.raises(InvalidInput, match="batch 0 of epoch 0"):
        next(made.updates())
    assert all(torch.equal(tensor, remembered(made)[name]) for name, tensor in before.items())


def test_an_infinite_gradient_of_a_finite_loss_is_said(tmp_path: Path) -> None:
    made = language(tmp_path, "decoder", steps=1)
    made.model.embedding.weight.register_hook(lambda gradient: gradient * float("inf"))
    said: list[str] = []
    train(made, say=said.append)
    assert said == ["step 1: the gradient is inf; skipped this update"]
