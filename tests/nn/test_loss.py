"""The loss in pieces is the loss."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.loss import chunked_cross_entropy


def make(vocabulary: int = 50, length: int = 23):
    x = torch.randn(2, length, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(vocabulary, 8, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(vocabulary, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(vocabulary, (2, length))
    targets[0, 3:9] = -100
    return x, weight, bias, targets


@pytest.mark.parametrize("chunk", [1, 5, 46, 1000])
def test_value_and_gradients_equal_those_of_the_whole(chunk):
    x, weight, bias, targets = make()
    found = chunked_cross_entropy(x, weight, targets, bias, chunk=chunk)
    expected = cross_entropy((x @ weight.T + bias).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found, (x, weight, bias)), torch.autograd.grad(expected, (x, weight, bias))
    ):
        torch.testing.assert_close(one, other)


def test_no_logits_of_the_whole_are_made():
    from longspan.audit.counting import LargestTensor

    x, weight, _, targets = make(vocabulary=4000, length=200)
    with LargestTensor() as seen:
        chunked_cross_entropy(x, weight, targets, chunk=10).backward()
    assert seen.elements == 10 * 4000


def test_nothing_that_counts_is_a_loss_of_0():
    x, weight, bias, targets = make()
    loss = chunked_cross_entropy(x, weight, torch.full_like(targets, -100), bias)
    assert loss.item() == 0.0


def test_bad_input_is_named():
    x, weight, _, targets = make()
    with pytest.raises(InvalidInput, match=r"\(2, 23\).*\(2, 22\)"):
        chunked_cross_entropy(x, weight, targets[:, 1:])
    with pytest.raises(InvalidOption, match="0"):
        chunked_cross_entropy(x, weight, targets, chunk=0)
