"""Bytes that are kept for a backward pass, exactly, and the peak of what is resident."""

from typing import Any

import torch
from torch import Tensor

from longspan.measure.footprint import Resident, give_back_memory, saved_bytes


def test_a_product_and_a_softmax_are_counted_exactly():
    x, w = torch.randn(32, 64, requires_grad=True), torch.randn(64, 48, requires_grad=True)

    def run() -> Tensor:
        return (x @ w).softmax(-1).sum()

    # The product keeps x and w, the softmax what it gives, and the sum only a shape.
    assert saved_bytes(run, [w]) == 4 * (32 * 64 + 32 * 48)
    assert saved_bytes(run) == 4 * (32 * 64 + 64 * 48 + 32 * 48)
    assert x.grad is not None  # the backward pass is done too


def test_views_of_one_storage_count_once():
    x = torch.randn(100, requires_grad=True)
    assert saved_bytes(lambda: (x[:50] * x[50:]).sum()) == 400


def test_recomputed_tensors_are_not_counted():
    x = torch.randn(1000, requires_grad=True)
    plain = saved_bytes(lambda: x.exp().exp().sum(), [x])

    def again() -> Tensor:
        return torch.utils.checkpoint.checkpoint(lambda y: y.exp().exp(), x, use_reentrant=False).sum()

    assert plain == 8000
    assert saved_bytes(again, [x]) < 1000


class Hidden(torch.autograd.Function):
    """Keeps a tensor that autograd is not told of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.root = x.square()
        return ctx.root.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * ctx.root.sqrt() * grads[0]


def test_tensors_saved_without_a_hook_are_counted():
    x = torch.rand(1000, requires_grad=True)
    assert saved_bytes(lambda: Hidden.apply(x)) == 4000


def test_the_peak_of_resident_memory():
    give_back_memory()
    found, size = Resident(), 2**26
    if not found.exact:
        return  # only Linux lets a process forget its peak
    assert found.peak() < size // 4
    tensor = torch.ones(size, dtype=torch.uint8)
    del tensor
    assert 0.9 * size < found.peak() < 1.25 * size  # though it is gone; the system counts in batches
    assert Resident().peak() < size // 4
