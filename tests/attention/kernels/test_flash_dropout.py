"""The kernel of attention with dropout: its random numbers and its pieces."""

import pytest
import torch
from torch import Tensor

from longspan.attention.kernels import flash, flash_dropout
from longspan.attention.kernels.flash_dropout import AttentionDropout
from longspan.attention.parts import dropout_masks

SHAPE = torch.Size([4, 256, 512])  # more than one use of the pool of random words


def draw(rate: float, pieces: int) -> Tensor:
    """(pieces, weights): 1 for kept weights; copied, because the pieces share one buffer"""
    torch.manual_seed(0)
    dropout = AttentionDropout(rate)
    with dropout.activate():
        return torch.stack([dropout.kept(SHAPE, torch.float32).flatten().clone() for _ in range(pieces)])


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_weights_are_dropped_at_the_rate_and_independently(rate: float):
    kept = draw(rate, 3)
    standard = (kept - (1 - rate)) / (rate * (1 - rate)) ** 0.5
    assert bool((standard.mean(1).abs() * SHAPE.numel() ** 0.5 < 4).all())
    uses = standard.unflatten(1, (-1, 2 * dropout_masks.POOL)).flatten(0, 1)  # about one use of the pool in each row
    related = uses @ uses.mT / uses.shape[1] ** 0.5
    assert bool((related - related.diag().diag()).abs().max() < 5)
    for lag in (1, 2, 3, 512, 2 * dropout_masks.POOL - 2, 2 * dropout_masks.POOL, 2 * dropout_masks.POOL + 2):
        product = standard[:, lag:] * standard[:, :-lag]
        assert float(product.mean().abs()) * product.numel() ** 0.5 < 4


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(3, 2, 40, 8), (2, 3, 40, 8)])
def test_pieces_of_rows_and_of_lanes_give_what_the_kernel_gives(
    shape: tuple[int, ...], causal: bool, monkeypatch: pytest.MonkeyPatch
):
    """At rate 0, with a mask that differs by sequence, in pieces of 16 rows."""
    monkeypatch.setattr(flash_dropout, "PIECE", 16 * 40)
    g, q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(4))
    mask = torch.randn(shape[0], 1, 40, 40, dtype=torch.float64)
    out, lse = flash._plain_forward(q, k, v, 0.3, causal, mask)
    gradients = flash._plain_backward(g, q, k, v, out, lse, 0.3, causal, mask)
    with AttentionDropout(0.0).activate():
        found = flash.forward(q, k, v, 0.3, causal=causal, mask=mask)
    with AttentionDropout(0.0).activate():
        found_gradients = flash.backward(g, q, k, v, out, lse, 0.3, causal=causal, mask=mask)
    torch.testing.assert_close(found, (out, lse))
    torch.testing.assert_close(found_gradients, gradients)
