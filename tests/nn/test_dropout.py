"""Dropout masks from a hash behave like torch's dropout."""

import pytest
import torch
from torch import nn

from longspan.nn import dropout
from longspan.nn.dropout import Dropout

COUNT = dropout.PIECE + dropout.LEAST  # more than one piece, and more than is left to torch


def layer(rate: float) -> Dropout:
    torch.manual_seed(0)
    return Dropout(rate).train()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_kept_numbers_are_scaled_and_the_rate_is_right(rate: float):
    x = torch.ones(COUNT // 64, 64, dtype=torch.float64)
    out = layer(rate)(x)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)], rel=1e-4)
    dropped = float((out == 0).double().mean())
    assert abs(dropped - rate) < 4 * (rate * (1 - rate) / COUNT) ** 0.5
    assert not out[0].equal(out[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_drops_the_same(dtype: torch.dtype):
    x = torch.ones(COUNT)
    half = layer(0.25)(x.to(dtype))
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), layer(0.25)(x), rtol=1e-2, atol=0)


def test_the_gradient_uses_the_same_mask():
    """Twice differentiable: the second derivative with respect to the direction is the layer itself."""
    x = torch.randn(COUNT, requires_grad=True)
    g = torch.randn(COUNT, requires_grad=True)
    out = layer(0.3)(x)
    mask = (out / x).detach()
    (back,) = torch.autograd.grad(out, x, g, create_graph=True)
    torch.testing.assert_close(back, g * mask)
    (again,) = torch.autograd.grad(back, g, torch.ones(COUNT))
    torch.testing.assert_close(again, mask)


def test_draws_follow_the_users_seed_and_differ_from_call_to_call():
    x, made = torch.ones(COUNT), layer(0.5)
    one, other = made(x), made(x)
    assert not one.equal(other)
    torch.manual_seed(0)
    assert made(x).equal(one)


def test_a_strided_view_is_dropped_in_logical_order():
    x = torch.randn(64, COUNT // 64).mT.requires_grad_()
    out = layer(0.5)(x)
    lives = out != 0
    torch.testing.assert_close(out[lives], 2 * x[lives], rtol=1e-4, atol=0)
    out.sum().backward()
    assert x.grad is not None and (x.grad != 0).equal(lives)


def test_small_inputs_evaluation_and_rate_1_use_torch():
    x = torch.ones(COUNT)
    assert layer(0.5).eval()(x) is x
    assert layer(1.0)(x).count_nonzero() == 0
    assert layer(0.0)(x).equal(x)
    few = torch.ones(dropout.LEAST - 1)
    torch.manual_seed(0)
    expected = nn.Dropout(0.5)(few)
    assert layer(0.5)(few).equal(expected)


def test_a_checkpoint_draws_the_same_again():
    from torch.utils.checkpoint import checkpoint

    x, made = torch.randn(COUNT, requires_grad=True), layer(0.5)
    out = checkpoint(lambda y: made(y) * y, x, use_reentrant=False)
    (back,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(back, 2 * out.detach() / x.detach(), rtol=1e-4, atol=1e-5)
