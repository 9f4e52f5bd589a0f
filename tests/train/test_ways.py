"""Ways to train: each gives what it should, and goes on to the bit where it was stopped."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.every import of_kind, of_mechanism
from tests.train.toy import Counting, Mean, NextToken, trainer

from longspan.attention import registry as attention
from longspan.data.base import Batch
from longspan.errors import InvalidOption
from longspan.models import build, load
from longspan.models.base import Model
from longspan.train import checkpoint
from longspan.train.fit import train
from longspan.train.loop import Interrupted, Trainer
from longspan.train.optim import Optimizer
from longspan.train.options import TrainOptions
from longspan.train.recompute import recompute
from longspan.train.run import Run
from longspan.train.schedule import Schedule


def stop_at(step: int) -> Callable[..., None]:
    def show(made: Trainer, row: object) -> None:
        if made.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return show


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in made.model.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [("decoder", {"hidden": 32}), ("transformer_xl", {"segment": 4, "memory": 4})],
    ids=["decoder", "transformer_xl"],
)
def test_recomputed_activations_give_the_same_gradients(name: str, options: dict[str, Any]) -> None:
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        model = build(name, vocabulary=11, width=16, layers=2, heads=2, dropout=0.1, **options).double().train()
        if again:
            recompute(model)
        torch.manual_seed(1)  # of dropout
        out = model(torch.arange(16).view(2, 8) % 11)
        (out[0] if isinstance(out, tuple) else out).square().sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def counting(sizes: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    return pack


def test_recomputation_keeps_less(tmp_path: Path) -> None:
    """Counted in tensors that are saved for the backward pass."""
    kept = []
    for again in (False, True):
        made = trainer(tmp_path, recompute=again)
        sizes: list[int] = []
        batch, _ = made._load(list(range(5)))[0]
        made.model.train()
        with torch.autograd.graph.saved_tensors_hooks(counting(sizes), lambda tensor: tensor):
            made.step(batch)
        kept.append(sum(sizes))
    assert kept[1] < 0.5 * kept[0]


def optimizer(kind: str, rate: float, **options: Any) -> dict[str, Any]:
    return {"optimizer": Optimizer(kind=kind, **options), "schedule": Schedule(rate=rate)}


WAYS = {
    "bfloat16": {"precision": "bfloat16"},
    "recompute": {"recompute": True},
    "ema": {"ema": 0.9},
    "adafactor": optimizer("adafactor", 0.1),
    "adagrad": optimizer("adagrad", 0.1),
    "sgd": optimizer("sgd", 1.0),
    "momentum": optimizer("sgd", 0.3, momentum=0.9, nesterov=True),
}


@pytest.mark.parametrize("options", WAYS.values(), ids=list(WAYS))
def test_it_learns_and_goes_on_to_the_bit(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = trainer(tmp_path / "whole", steps=40, log_every=1, **options)
    train(whole)
    rows = [row["loss"] for row in whole.run.rows() if "loss" in row]
    assert rows[-1] < 0.7 * rows[0]
    with pytest.raises(Interrupted):
        train(trainer(tmp_path / "cut", steps=40, log_every=1, **options), show=stop_at(7))
    second = trainer(tmp_path / "cut", steps=40, log_every=1, **options)
    train(second, resume=True)
    assert all(torch.equal(tensor, weights(second)[name]) for name, tensor in weights(whole).items())
    one, other = (load(folder / "model").state_dict() for folder in (tmp_path / "whole", tmp_path / "cut"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert {tensor.dtype for tensor in one.values()} == {torch.float32}


CAUSAL = [name for name in attention.names() if attention.find(name).supports.causal]


@pytest.mark.parametrize("name", [*CAUSAL, "recurrent", "universal_decoder"])
def test_every_mechanism_trains_with_recomputed_activations(tmp_path: Path, name: str) -> None:
    """To the same weights as without them, moved centroids and drawn features among these; and in bfloat16."""

    def trained(folder: str, **options: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = of_mechanism(name, dropout=0.0) if name in CAUSAL else of_kind(name, dropout=0.0)
        given = TrainOptions(steps=3, schedule=Schedule(rate=1e-2, warmup=2), **options)
        made = Trainer(Run(tmp_path / folder), model, Counting(), NextToken(), given)
        train(made)
        return weights(made)

    plain, again = trained("plain"), trained("again", recompute=True)
    torch.testing.assert_close(again, plain, rtol=1e-5, atol=1e-6)
    half = trained("half", recompute=True, precision="bfloat16")
    assert all(tensor.isfinite().all() for tensor in half.values() if tensor.is_floating_point())


def test_bfloat16_is_what_the_products_are_made_in(tmp_path: Path) -> None:
    made = trainer(tmp_path, precision="bfloat16")
    seen: set[torch.dtype] = set()
    layer = next(module for module in made.model.modules() if isinstance(module, torch.nn.Linear))
    layer.register_forward_hook(lambda module, given, out: seen.add(out.dtype))
    next(made.updates())
    assert seen == {torch.bfloat16}


def test_the_running_mean_is_what_is_evaluated_and_kept(tmp_path: Path) -> None:
    made = trainer(tmp_path, steps=6, ema=0.5, evaluate_every=3)
    means: dict[str, torch.Tensor] = {}

    def show(made: Trainer, row: object) -> None:
        for name, tensor in made.model.state_dict().items():
            means[name] = tensor.clone() if name not in means else means[name].lerp(tensor, 0.5)

    train(made, show=show)
    kept = load(tmp_path / "model")
    for name, tensor in kept.state_dict().items():
        torch.testing.assert_close(tensor, means[name])
    other = trainer(tmp_path / "other", steps=6)
    other.model.load_state_dict(kept.state_dict())
    assert made.held_out is not None
    assert other.evaluate(made.held_out) == pytest.approx(made.progress.figures)
    assert not torch.equal(weights(made)["embedding.weight"], kept.state_dict()["embedding.weight"])


def test_the_mean_of_the_last_checkpoints(tmp_path: Path) -> None:
    made = trainer(tmp_path, steps=12, save_every=3, average=3)
    train(made)
    saved = checkpoint.every(tmp_path / "checkpoints")
    assert [path.name for path in saved] == ["00000012", "00000009", "00000006"]
    found = [checkpoint.read_tensors(path / "model" / "model.safetensors") for path in saved]
    for name, tensor in load(tmp_path / "model").state_dict().items():
        torch.testing.assert_close(tensor, torch.stack([each[name] for each in found]).mean(0))


class Worse(NextToken):
    """Figures that are best at the second evaluation."""

    def __init__(self) -> None:
        self.values = iter([3.0, 2.0, 2.5, float("nan"), 2.1, 1.0])

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Mean, Any]:
        return Mean(next(self.values), 1), None


def test_it_stops_when_nothing_gets_better_and_keeps_the_best(tmp_path: Path) -> None:
    def made(folder: Path) -> Trainer:
        found = trainer(folder, steps=100, evaluate_every=2, patience=3)
        found.held_out, found.objective = Counting(examples=5), Worse()
        return found

    said: list[str] = []
    first = made(tmp_path / "whole")
    first.step.objective = NextToken()
    train(first, say=said.append)
    assert first.progress.step == 10 and first.progress.best_step == 4
    assert "no better loss for 3 evaluations: stopped at step 10" in said
    best = checkpoint.read_tensors(tmp_path / "whole" / "checkpoints" / "00000004" / "model" / "model.safetensors")
    assert all(
        torch.equal(tensor, best[name]) for name, tensor in load(tmp_path / "whole" / "model").state_dict().items()
    )
    # A run that has stopped does not begin to learn again.
    second = made(tmp_path / "whole")
    train(second, resume=True)
    assert second.progress.step == 10


@pytest.mark.slow
def test_compiled_is_the_same_to_rounding(tmp_path: Path) -> None:
    found = []
    for compiled in (False, True):
        made = trainer(tmp_path / str(compiled), dropout=0.0, steps=6, log_every=1, compile=compiled)
        train(made)
        found.append([row["loss"] for row in made.run.rows() if "loss" in row])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert load(tmp_path / "True" / "model").options == load(tmp_path / "False" / "model").options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 1, "ema": 0.9, "average": 2}, "ema and average both average the weights"),
        ({"steps": 1, "patience": 2}, "patience counts evaluations"),
        ({"steps": 1, "epochs": 1.0}, "give either steps or epochs"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        TrainOptions(**options)
