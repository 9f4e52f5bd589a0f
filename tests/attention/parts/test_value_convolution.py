"""Value convolution by band products equals torch's convolution."""

import pytest
import torch
from torch.nn.functional import conv2d

from longspan.attention.parts import value_convolution


@pytest.mark.parametrize("length", [33, 64, 65, 100, 257])
@pytest.mark.parametrize("kernel", [1, 5, 33, 75])  # the last one reaches past both neighbours
@pytest.mark.parametrize("turned", [False, True])  # as projections lie in memory, or head by head
def test_values_and_gradients_of_a_convolution(length: int, kernel: int, turned: bool):
    torch.manual_seed(0)
    v = torch.randn(2, length, 3, 4, dtype=torch.float64).transpose(1, 2)
    v = (v if turned else v.contiguous()).requires_grad_()
    taps = torch.randn(3, kernel, dtype=torch.float64, requires_grad=True)
    g = torch.randn(2, 3, length, 4, dtype=torch.float64)
    out = value_convolution.convolve(v, taps)
    wanted = conv2d(v, taps[:, None, :, None], padding=(kernel // 2, 0), groups=3)
    assert type(out.grad_fn).__name__ == "_FilteredBackward"
    torch.testing.assert_close(out, wanted)
    for found, other in zip(torch.autograd.grad(out, (v, taps), g), torch.autograd.grad(wanted, (v, taps), g)):
        torch.testing.assert_close(found, other)


@pytest.mark.parametrize(("length", "kind"), [(32, torch.float32), (100, torch.bfloat16)])
def test_short_texts_and_half_precision_are_left_to_torch(length: int, kind: torch.dtype):
    v, taps = torch.randn(1, 2, length, 4, dtype=kind), torch.randn(2, 5, dtype=kind)
    assert torch.equal(value_convolution.convolve(v, taps), conv2d(v, taps[:, None, :, None], padding=(2, 0), groups=2))


def test_a_filter_alone_may_be_trained():
    v, taps = torch.randn(1, 2, 50, 4), torch.randn(2, 3, requires_grad=True)
    value_convolution.convolve(v, taps).sum().backward()
    assert taps.grad is not None
    torch.testing.assert_close(taps.grad[:, 1], v.sum((0, 2, 3)))
