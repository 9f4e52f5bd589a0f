import math

import pytest
import torch
from torch import Tensor, nn

from longspan.errors import InvalidOption, UnknownName
from longspan.nn.feedforward import GATED, PLAIN, FeedForward


def build(activation: str = "gelu", **options) -> FeedForward:
    torch.manual_seed(0)
    return FeedForward(6, 10, activation, **options).double()


def sample() -> Tensor:
    return torch.randn(2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def run(layer: FeedForward, x: Tensor, seed: int = 2) -> tuple[Tensor, list[Tensor]]:
    x = x.clone().requires_grad_()
    torch.manual_seed(seed)
    out = layer(x)
    return out, list(torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()]))


def test_gelu_golden_values():
    one = torch.tensor(1.0, dtype=torch.float64)
    assert PLAIN["gelu"](one).item() == pytest.approx(0.841345, abs=1e-6)
    assert PLAIN["gelu_tanh"](one).item() == pytest.approx(0.841192, abs=1e-6)
    assert PLAIN["gelu_sigmoid"](one).item() == pytest.approx(1 / (1 + math.exp(-1.702)), abs=1e-12)
    x = torch.linspace(-6, 6, 24001, dtype=torch.float64)
    assert (PLAIN["gelu"](x) - PLAIN["gelu_tanh"](x)).abs().max().item() == pytest.approx(4.732e-4, abs=1e-7)
    assert (PLAIN["gelu"](x) - PLAIN["gelu_sigmoid"](x)).abs().max().item() == pytest.approx(0.0203, abs=1e-4)


def test_relu_is_the_paper_s_formula():
    layer, x = build("relu"), sample()
    wanted = (x @ layer.inner.weight.T + layer.inner.bias).clamp(min=0) @ layer.outer.weight.T + layer.outer.bias
    torch.testing.assert_close(layer(x), wanted)


@pytest.mark.parametrize("name", sorted(GATED))
def test_gated_is_activation_of_one_projection_times_another(name: str):
    layer, x = build(name, bias=False), sample()
    gate, value = layer.inner.weight.split(10)
    plain = {"glu": torch.sigmoid, "reglu": torch.relu, "swiglu": nn.functional.silu}
    activation = plain.get(name) or PLAIN[name.replace("geglu", "gelu")]
    torch.testing.assert_close(layer(x), activation(x @ gate.T) * (x @ value.T) @ layer.outer.weight.T)
    assert sum(p.numel() for p in layer.parameters()) == 3 * 6 * 10


@pytest.mark.parametrize("name", sorted(PLAIN | GATED))
@pytest.mark.parametrize("chunk", [1, 3, 7, 50])
def test_chunked_equals_whole_in_value_and_gradient(name: str, chunk: int):
    out, gradients = run(build(name, chunk=chunk), sample())
    wanted, wanted_gradients = run(build(name), sample())
    torch.testing.assert_close(out, wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients, wanted_gradients, atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(build(name, chunk=chunk)(sample()), wanted, atol=1e-12, rtol=0)


def test_recomputation_draws_the_same_dropout_mask():
    layer, x = build(chunk=3, dropout=0.5), sample()
    out, gradients = run(layer, x)

    x = x.clone().requires_grad_()
    torch.manual_seed(2)
    wanted = torch.cat([layer._compute(piece) for piece in x.split(3, dim=-2)], dim=-2)
    wanted_gradients = torch.autograd.grad(wanted.sin().sum(), [x, *layer.parameters()])
    assert not torch.equal(wanted, build(chunk=3)(x))
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(gradients, list(wanted_gradients))


def test_chunks_do_not_save_the_inner_activations():
    def saved(chunk: int) -> int:
        layer, x = FeedForward(4, 64, "geglu", chunk=chunk), torch.randn(1, 32, 4, requires_grad=True)
        parameters, total = {p.data_ptr() for p in layer.parameters()}, 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal total
            total += tensor.nbytes if tensor.data_ptr() not in parameters else 0
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(x)
        return total

    inner = 32 * 64 * 4
    assert saved(0) >= 3 * inner
    assert saved(8) < inner


def test_exports_whole_with_any_length():
    layer, x = build(chunk=2), sample()
    lengths = {"x": {1: torch.export.Dim("length", min=2)}}
    program = torch.export.export(layer, (x[:, :3].clone(),), dynamic_shapes=lengths)
    torch.testing.assert_close(program.module()(x), layer(x))


def test_refusals():
    with pytest.raises(UnknownName, match=r"'gelutanh'.*did you mean 'gelu_tanh'"):
        FeedForward(4, 8, "gelutanh")
    with pytest.raises(InvalidOption, match=r"chunk must be 0 .* got -1"):
        FeedForward(4, 8, "relu", chunk=-1)
