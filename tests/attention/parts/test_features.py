"""Feature maps: definition, gradient, cost, and equality of buffered and plain results."""

import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from longspan.attention.parts.features import (
    CallableMap,
    EluPlusOne,
    ExponentialMap,
    Identity,
    PositiveExponential,
    Relu,
    as_feature_map,
)
from longspan.errors import InvalidInput, InvalidOption

HEAD_DIM = 6


def projection(features: int = 10) -> torch.Tensor:
    return torch.randn(features, HEAD_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def rows() -> torch.Tensor:
    return torch.randn(3, 5, HEAD_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def squares(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.square(), x.sigmoid()], -1)


MAPS = {
    "elu": EluPlusOne(),
    "relu": Relu(),
    "relu, projected": Relu(0.5, projection()),
    "identity": Identity(),
    "exponential": PositiveExponential(projection()),
    "hyperbolic": PositiveExponential(projection(), hyperbolic=True),
    "callable": CallableMap(squares, rows()),
}


def definition(name: str, x: torch.Tensor) -> torch.Tensor:
    scaled = x * HEAD_DIM**-0.25
    match name:
        case "elu":
            return nn.functional.elu(x) + 1
        case "relu":
            return x.relu() + 1e-3
        case "relu, projected":
            return (x @ projection().T).relu() + 0.5
        case "identity":
            return x
        case "exponential":
            return (scaled @ projection().T - scaled.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(10)
        case "hyperbolic":
            w = torch.cat([projection(), -projection()])
            return (scaled @ w.T - scaled.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(20)
        case _:
            return squares(x)


@pytest.mark.parametrize("name", MAPS)
def test_features_are_those_of_the_definition_with_and_without_a_buffer(name):
    feature_map, x = MAPS[name], rows()
    expected = definition(name, x)
    assert expected.shape[-1] == feature_map.width(HEAD_DIM)
    buffer = torch.full_like(expected, math.nan)
    torch.testing.assert_close(feature_map.features(x), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(feature_map.features(x, buffer), expected, rtol=1e-12, atol=0)
    assert torch.equal(x, rows())


@pytest.mark.parametrize("name", MAPS)
def test_pull_is_the_gradient_of_the_features(name):
    feature_map, x = MAPS[name], rows().requires_grad_()
    features = feature_map.features(x)
    gradient = torch.randn(features.shape, dtype=features.dtype, generator=torch.Generator().manual_seed(3))
    (expected,) = torch.autograd.grad(features, x, gradient)
    out = torch.full_like(x, math.nan)
    with torch.no_grad():
        feature_map.pull(x.detach(), features.detach().clone(), gradient.clone(), out)
    torch.testing.assert_close(out.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["exponential", "hyperbolic"])
def test_pull_exponents_leaves_the_common_part_out(name):
    feature_map, x = MAPS[name], rows().requires_grad_()
    assert isinstance(feature_map, ExponentialMap)
    features = feature_map.exponents(x).exp()
    (expected,) = torch.autograd.grad(features.sum(), x)
    out = torch.empty_like(x)
    with torch.no_grad():
        feature_map.pull_exponents(x.detach(), features.detach(), torch.ones_like(features), out)
    torch.testing.assert_close(out.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MAPS)
def test_the_declared_cost_equals_the_counted_one(name):
    x = rows()
    with FlopCounterMode(display=False) as counter:
        MAPS[name].features(x)
    assert counter.get_total_flops() == 3 * MAPS[name].flops(5, HEAD_DIM)


def test_positive_features_estimate_the_softmax_kernel():
    """Choromanski et al. 2020, Lemma 1: the mean over draws is exp(q·k/√d)."""
    draws = torch.randn(200_000, HEAD_DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    q, k = 0.7 * rows()[:1, :1], 0.7 * rows()[1:2, :1]
    true = (q * k).sum() / math.sqrt(HEAD_DIM)
    for hyperbolic in (False, True):
        feature_map = PositiveExponential(draws, hyperbolic=hyperbolic)
        estimate = (feature_map.features(q) * feature_map.features(k)).sum()
        assert estimate.log().item() == pytest.approx(true.item(), abs=0.02)


def test_elu_is_exact_far_below_zero_where_expm1_plus_one_is_not():
    x = torch.full((1, 1, 1), -30.0)
    assert EluPlusOne().features(x).item() == pytest.approx(math.exp(-30), rel=1e-6)


def test_learned_is_true_for_maps_with_parameters():
    x = rows()
    assert not any(feature_map.learned for feature_map in MAPS.values())
    assert as_feature_map(nn.Linear(HEAD_DIM, 4, dtype=torch.float64), x).learned
    weight = torch.ones(HEAD_DIM, dtype=torch.float64, requires_grad=True)
    assert as_feature_map(lambda rows: rows * weight, x).learned
    assert PositiveExponential(projection().requires_grad_()).learned
    assert Relu(0.0, projection().requires_grad_()).learned


def test_refusals():
    with pytest.raises(InvalidOption, match="epsilon"):
        Relu(-1.0)
    with pytest.raises(InvalidInput, match="features, head_dim"):
        PositiveExponential(torch.ones(3))
    with pytest.raises(InvalidInput, match="heads of 6"):
        PositiveExponential(projection()).width(7)
    with pytest.raises(InvalidInput, match="last dimension"):
        as_feature_map(lambda x: x.sum(1), rows())
