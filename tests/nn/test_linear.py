"""The linear layer that is quick for few rows is a linear layer."""

import pytest
import torch
from torch.nn import functional


from longspan.nn.linear import Linear, linear


@pytest.mark.parametrize("outputs", [3, 8, 64])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (4, 5), (2, 2, 5), (3, 1, 5), (1, 40, 5), (9, 8, 5), (0, 5)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_it_is_a_linear_layer(outputs: int, shape: tuple[int, ...], bias: bool, training: bool):
    layer = Linear(5, outputs, bias=bias).double()
    x = torch.randn(shape, dtype=torch.float64)
    expected = functional.linear(x, layer.weight, layer.bias)
    with torch.set_grad_enabled(training):
        out = layer(x)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    assert out.requires_grad is training


def test_under_autocast_it_casts():
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.randn(2, 5), torch.randn(3, 5), torch.randn(3)).dtype == torch.bfloat16
