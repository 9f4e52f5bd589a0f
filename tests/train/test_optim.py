"""Which parameters decay, and how fast each part of a model learns."""

import pytest
import torch

from longspan import models
from longspan.errors import InvalidOption
from longspan.train.optim import Optimizer


@pytest.fixture(scope="module")
def model():
    return models.build("encoder", vocabulary=20, layers=2, width=8, heads=2, hidden=16, embedding_norm=True)


def scales(model, **options) -> dict[str, float]:
    found = {}
    for named, _, scale in Optimizer(**options).groups(model).values():
        for name, _ in named:
            assert name not in found
            found[name] = scale
    return found


def test_every_parameter_is_in_one_group_and_vectors_do_not_decay(model):
    groups = Optimizer(decay=0.1).groups(model)
    assert set(groups) == {"decay", "no decay"}
    decay = {name for name, _ in groups["decay"][0]}
    assert decay == {name for name, each in model.named_parameters() if each.dim() == 2}
    rest = {name for name, _ in groups["no decay"][0]}
    assert decay | rest == {name for name, _ in model.named_parameters()} and not decay & rest
    assert groups["decay"][1] == 0.1 and groups["no decay"][1] == 0.0


def test_layers_learn_at_rates_of_their_own(model):
    found = scales(model, layer_decay=0.5)
    assert found["embedding.weight"] == 0.5**4
    assert found["stack.blocks.0.mixer.out.weight"] == 0.5**3
    assert found["stack.blocks.1.mixer.out.weight"] == 0.5**2


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_embeddings_learn_at_a_multiple(model, layer_decay):
    plain, faster = (scales(model, layer_decay=layer_decay, embedding_rate=rate) for rate in (1.0, 20.0))
    assert faster == {name: rate * (20 if name.startswith("embedding") else 1) for name, rate in plain.items()}


def test_the_optimiser_has_these_groups(model):
    built = Optimizer(embedding_rate=20.0).build(model)
    assert {group["name"]: group["scale"] for group in built.param_groups} == {
        "decay, depth 0": 20.0,
        "no decay, depth 0": 20.0,
        "decay": 1.0,
        "no decay": 1.0,
    }


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("adamw", torch.optim.AdamW),
        ("adafactor", torch.optim.Adafactor),
        ("adagrad", torch.optim.Adagrad),
        ("sgd", torch.optim.SGD),
    ],
)
def test_the_kinds_of_optimizers(model, kind, cls):
    built = Optimizer(kind=kind, decay=0.1).build(model)
    assert type(built) is cls
    assert [group["weight_decay"] for group in built.param_groups] == [0.1, 0.0]


def test_momentum_is_for_sgd():
    with pytest.raises(InvalidOption, match="momentum and nesterov are for sgd, not for adamw"):
        Optimizer(momentum=0.9)
    with pytest.raises(InvalidOption, match="nesterov needs momentum"):
        Optimizer(kind="sgd", nesterov=True)


def test_a_step_of_sgd_by_hand():
    layer = torch.nn.Linear(2, 1, bias=False)
    built = Optimizer(kind="sgd", momentum=0.5, decay=0.1).build(layer)
    expected, speed = layer.weight.detach().clone(), 0.0
    for gradient in (1.0, 2.0):
        for group in built.param_groups:
            group["lr"] = 0.1
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        built.step()
        speed = 0.5 * speed + gradient + 0.1 * expected
        expected = expected - 0.1 * speed
    torch.testing.assert_close(layer.weight.detach(), expected)
