"""The loss that keeps heads different, against the formulas of Li et al. 2018."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from longspan.attention import build as build_attention
from longspan.errors import InvalidOption, Unsupported
from longspan.models import build
from longspan.nn.disagreement import HeadDisagreement, cosine_agreement, position_agreement
from longspan.nn.multihead import MultiHead

H = 3


def pairs(value) -> float:
    """1/H² Σ_ij value(i, j)"""
    return sum(float(value(i, j)) for i in range(H) for j in range(H)) / H**2


def test_cosines_and_products_of_all_pairs():
    torch.manual_seed(0)
    x, weights = torch.randn(2, H, 5, 4).double(), torch.rand(2, H, 5, 7).double().softmax(-1)
    expected = pairs(lambda i, j: cosine_similarity(x[:, i], x[:, j], dim=-1).mean())
    assert float(cosine_agreement(x)) == pytest.approx(expected, abs=1e-12)
    expected = pairs(lambda i, j: (weights[:, i] * weights[:, j]).sum(-1).mean())
    assert float(position_agreement(weights)) == pytest.approx(expected, abs=1e-12)
    keep = torch.arange(5) < torch.tensor([[5], [2]])
    expected = pairs(lambda i, j: cosine_similarity(x[:, i], x[:, j], dim=-1)[keep].mean())
    assert float(cosine_agreement(x, keep)) == pytest.approx(expected, abs=1e-12)
    expected = pairs(lambda i, j: (weights[:, i] * weights[:, j]).sum(-1)[keep].mean())
    assert float(position_agreement(weights, keep)) == pytest.approx(expected, abs=1e-12)


def test_equal_heads_agree_and_orthogonal_heads_do_not():
    one = torch.randn(2, 1, 5, 4)
    assert float(cosine_agreement(one.expand(-1, H, -1, -1))) == pytest.approx(1.0, abs=1e-6)
    assert float(cosine_agreement(torch.eye(H).view(1, H, 1, H))) == pytest.approx(1 / H, abs=1e-6)
    assert float(position_agreement(torch.eye(H).view(1, H, 1, H))) == pytest.approx(1 / H, abs=1e-6)
    assert torch.isfinite(cosine_agreement(torch.zeros(1, H, 2, 4)))


@pytest.mark.parametrize("name", ("softmax", "window", "linear"))
def test_a_layer_adds_the_loss_of_each_kind(name: str):
    torch.manual_seed(0)
    layer = MultiHead(12, build_attention(name, heads=H, head_dim=4)).double().train()
    x, mask = torch.randn(2, 6, 12).double(), torch.arange(6) < torch.tensor([[6], [4]])
    seen = {}
    layer.mechanism.register_forward_hook(lambda module, heads, out: seen.update(v=heads[2], out=out, qk=heads[:2]))
    found = {}
    for kind in ("values", "positions", "outputs"):
        disagreement = HeadDisagreement(layer, [kind], weight=0.5)
        disagreement.reset()
        layer(x, key_mask=mask)
        found[kind] = layer.mechanism.auxiliary_loss
        disagreement.remove()
    weights = layer.mechanism.oracle(*seen["qk"], key_mask=mask)
    torch.testing.assert_close(found["values"], 0.5 * cosine_agreement(seen["v"], mask))
    torch.testing.assert_close(found["positions"], 0.5 * position_agreement(weights, mask))
    torch.testing.assert_close(found["outputs"], 0.5 * cosine_agreement(seen["out"], mask))
    for kind, parameter in (("values", "v"), ("positions", "q"), ("outputs", "v")):
        (gradient,) = torch.autograd.grad(found[kind], layer.project[parameter].weight)
        assert gradient.any()
    layer.mechanism.auxiliary_loss = None
    layer.eval()(x)
    assert layer.mechanism.auxiliary_loss is None


SIZES = {"vocabulary": 11, "width": 12, "heads": 3, "hidden": 8, "layers": 2, "dropout": 0.0}


@pytest.mark.parametrize(
    ("kind", "options"),
    (
        ("decoder", {}),
        ("decoder", {"place": "pre", "reversible": True, "merge": "mean"}),
        ("decoder", {"groups": 1}),
        ("universal_decoder", {}),
    ),
)
def test_the_model_sums_its_layers(kind: str, options: dict):
    torch.manual_seed(0)
    model = build(kind, **SIZES, **options).double().train()
    ids, per_layer = torch.randint(11, (2, 7)), []
    layers = [module for module in model.modules() if isinstance(module, MultiHead)]
    hooks = [
        layer.mechanism.register_forward_hook(lambda module, heads, out: per_layer.append(cosine_agreement(out)))
        for layer in layers
    ]
    model(ids)
    for hook in hooks:
        hook.remove()
    disagreement = HeadDisagreement(model, ["outputs"], weight=2.0)
    disagreement.reset()
    model(ids)
    loss = model.auxiliary_loss()
    assert loss.item() == pytest.approx(2.0 * sum(per_layer).item() / len(layers), abs=1e-9)
    loss.backward()
    assert all(layer.project["v"].weight.grad.any() for layer in layers)


def test_what_is_refused():
    model = build("decoder", **SIZES)
    with pytest.raises(InvalidOption, match="disagreement must be of values, positions, outputs, not subspace"):
        HeadDisagreement(model, ["subspace"])
    with pytest.raises(Unsupported, match="TransformerXL has no MultiHead layer"):
        HeadDisagreement(build("transformer_xl", vocabulary=11, width=8, heads=2, layers=1, hidden=8), ["values"])
