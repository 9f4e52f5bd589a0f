"""The linear layer that is fast for few rows equals torch's, and adjacent layers can be used as one."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from longspan.nn import linear as module
from longspan.nn.linear import FEW, Linear, ensure_fused, fuse_storage, fused_view, linear

INPUTS = 256
LARGE = module.LEAST // INPUTS  # outputs of a weight that is just large enough


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("outputs", [3, LARGE, LARGE + 1])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 2), (3, 1), (1, FEW), (9, 8), (0,)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_it_is_a_linear_layer(outputs: int, shape: tuple[int, ...], bias: bool, training: bool):
    layer = Linear(INPUTS, outputs, bias=bias).double()
    x = torch.randn(*shape, INPUTS, dtype=torch.float64)
    expected = functional.linear(x, layer.weight, layer.bias)
    with torch.set_grad_enabled(training):
        out = layer(x)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    assert out.requires_grad is training


@pytest.mark.parametrize("rows", [1, 3])
def test_inputs_may_have_any_strides(rows: int):
    weight = torch.randn(LARGE, INPUTS)
    for x in (
        torch.randn(INPUTS, rows).t(),
        torch.randn(rows, 2 * INPUTS)[:, ::2],
        torch.randn(1).expand(rows, INPUTS),
    ):
        expected = x.contiguous() @ weight.t()
        with torch.no_grad():
            torch.testing.assert_close(linear(x, weight), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "rows, outputs, slices", [(1, LARGE, 2), (FEW, LARGE, 2), (1, LARGE - 2, 0), (FEW + 1, LARGE, 0)]
)
def test_a_large_weight_is_split_for_few_rows(monkeypatch, rows: int, outputs: int, slices: int):
    seen, bmm = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: seen.append(len(a)) or bmm(a, b))
    with torch.inference_mode():
        linear(torch.randn(rows, INPUTS), torch.randn(outputs, INPUTS))
    assert seen == ([slices] if slices else [])


def test_under_autocast_it_casts():
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        weight = torch.randn(LARGE, INPUTS)
        assert linear(torch.randn(2, INPUTS), weight, torch.randn(LARGE)).dtype == torch.bfloat16


@pytest.fixture(params=[True, False], ids=["bias", "plain"])
def layers(request):
    torch.manual_seed(0)
    return nn.ModuleList(Linear(8, outputs, bias=request.param) for outputs in (6, 4, 4))


def check(layers: nn.ModuleList) -> None:
    whole = fused_view(layers)
    assert whole is not None
    x = torch.randn(3, 8)
    expected = torch.cat([layer(x) for layer in layers], -1)
    torch.testing.assert_close(functional.linear(x, *whole), expected)


def test_adjacent_layers_have_a_fused_view(layers: nn.ModuleList):
    before = copy.deepcopy(layers.state_dict())
    parameters = list(layers.parameters())
    assert fused_view(layers) is None
    fuse_storage(layers)
    check(layers)
    assert all(new is old for new, old in zip(layers.parameters(), parameters))
    for name, value in layers.state_dict().items():
        assert torch.equal(value, before[name])


def test_changes_of_a_layer_show_in_the_fused_view(layers: nn.ModuleList):
    fuse_storage(layers)
    layers[1](torch.randn(2, 8)).sum().backward()
    assert layers[0].weight.grad is None and layers[1].weight.grad is not None
    torch.optim.SGD(layers.parameters(), lr=0.5).step()
    check(layers)
    layers.load_state_dict({name: torch.randn_like(value) for name, value in layers.state_dict().items()})
    check(layers)


@pytest.mark.parametrize("change", ["replaced", "wrapped", "hooked", "parametrised", "assigned", "moved", "copied"])
def test_changed_layers_are_not_fused(layers: nn.ModuleList, change: str):
    fuse_storage(layers)
    if change == "replaced":
        layers[2] = nn.Sequential(Linear(8, 4))
    elif change == "wrapped":
        layers[0].forward = lambda x: x
    elif change == "hooked":
        layers[1].register_forward_hook(lambda *_: None)
    elif change == "parametrised":
        parametrize.register_parametrization(layers[0], "weight", nn.Identity())
    elif change == "assigned":
        layers[1].weight = nn.Parameter(torch.randn(4, 8))
    elif change == "moved":
        layers.double()
    else:
        layers = copy.deepcopy(layers)
    assert fused_view(layers) is None


def test_separated_layers_are_fused_again(layers: nn.ModuleList):
    apart = copy.deepcopy(layers)
    x = torch.randn(2, layers[0].in_features)
    assert fused_view([*apart]) is None
    before = [layer(x) for layer in apart]
    with torch.inference_mode():
        ensure_fused([*apart])
    whole = fused_view([*apart])
    assert whole is not None
    torch.testing.assert_close(linear(x, *whole), torch.cat(before, -1))
    sum(layer(x).sum() for layer in apart).backward()  # they can still be trained
    assert all(parameter.grad is not None for parameter in apart.parameters())


@pytest.mark.parametrize("change", ["hook", "type"])
def test_layers_with_hooks_or_another_dtype_are_not_moved(layers: nn.ModuleList, change: str):
    apart = copy.deepcopy(layers)
    if change == "hook":
        apart[1].register_forward_hook(lambda *_: None)
    else:
        apart[1].double()
    places = [parameter.data_ptr() for parameter in apart.parameters()]
    ensure_fused([*apart])
    assert [parameter.data_ptr() for parameter in apart.parameters()] == places
