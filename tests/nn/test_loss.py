"""The chunked loss equals the loss over all logits; label smoothing equals its three definitions."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.loss import CONVENTIONS, chunked_cross_entropy, smoothed_cross_entropy, smoothed_entropy


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


def test_the_logits_of_the_whole_text_are_never_allocated():
    from longspan.audit.counting import LargestTensor

    x, weight, _, targets = make(vocabulary=4000, length=200)
    with LargestTensor() as seen:
        chunked_cross_entropy(x, weight, targets, chunk=10).backward()
    assert seen.elements == 10 * 4000


def test_without_targets_the_loss_is_0():
    x, weight, bias, targets = make()
    loss = chunked_cross_entropy(x, weight, torch.full_like(targets, -100), bias)
    assert loss.item() == 0.0


def test_bad_input_is_named():
    x, weight, _, targets = make()
    with pytest.raises(InvalidInput, match=r"\(2, 23\).*\(2, 22\)"):
        chunked_cross_entropy(x, weight, targets[:, 1:])
    with pytest.raises(InvalidOption, match="0"):
        chunked_cross_entropy(x, weight, targets, chunk=0)


# Label smoothing


P = torch.tensor([[0.1, 0.2, 0.4, 0.2, 0.1]], dtype=torch.float64)
GOLDEN = {"uniform": (0.999468, 0.609795), "others": (1.020263, 0.556550), "others_nopad": (1.008710, 0.573766)}


def smoothed_target(convention: str, vocabulary: int = 5, y: int = 2, pad: int = 0, eps: float = 0.1) -> torch.Tensor:
    """The formulas of the three programs."""
    q = torch.full((vocabulary,), eps / (vocabulary - CONVENTIONS.index(convention)), dtype=torch.float64)
    if convention == "uniform":
        q[y] += 1 - eps
    else:
        q[y] = 1 - eps
    if convention == "others_nopad":
        q[pad] = 0
    return q


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_smoothed_losses_are_those_of_the_three_programs(convention):
    cross, divergence = GOLDEN[convention]
    options = {"smoothing": 0.1, "convention": convention}
    found, plain = smoothed_cross_entropy(P.log(), torch.tensor([2]), padding=0, **options)
    assert float(found) == pytest.approx(cross, abs=5e-7)
    assert float(found) - smoothed_entropy(5, **options) == pytest.approx(divergence, abs=5e-7)
    assert float(plain) == pytest.approx(-float(P[0, 2].log()))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_gradients_of_smoothed_losses_are_those_of_the_divergence(convention):
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([2, -100, 4, 1])
    found, plain = smoothed_cross_entropy(logits, targets, smoothing=0.1, convention=convention, padding=0)
    wanted = torch.stack([smoothed_target(convention, y=y) for y in (2, 4, 1)])
    divergence = torch.nn.functional.kl_div(logits.log_softmax(-1)[[0, 2, 3]], wanted, reduction="sum")
    for one, other in (
        (found, divergence),
        (plain, cross_entropy(logits, targets, reduction="sum")),
        (2 * found + 3 * plain, 2 * divergence + 3 * cross_entropy(logits, targets, reduction="sum")),
    ):
        grads = [torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (one, other)]
        torch.testing.assert_close(*grads, rtol=0, atol=1e-12)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_without_smoothing_it_is_the_plain_loss_to_the_bit(convention):
    logits = torch.randn(3, 7, 11)
    targets = torch.randint(11, (3, 7))
    targets[1, 4:] = -100
    found, plain = smoothed_cross_entropy(logits, targets, smoothing=0.0, convention=convention, padding=0)
    expected = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    assert torch.equal(found, expected) and torch.equal(plain, expected)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_padding_changes_neither_loss_nor_gradients(convention):
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([2, 3, 1, -100, -100, -100])
    options = {"smoothing": 0.1, "convention": convention, "padding": 0}
    short, _ = smoothed_cross_entropy(logits[:3], targets[:3], **options)
    padded, _ = smoothed_cross_entropy(logits, targets, **options)
    assert torch.equal(short, padded)
    for one, other in zip(torch.autograd.grad(short, logits), torch.autograd.grad(padded, logits)):
        assert torch.equal(one, other)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_no_prediction_is_better_than_the_smoothed_target(convention):
    options = {"smoothing": 0.1, "convention": convention, "padding": 0}
    best = smoothed_target(convention).clamp_min(1e-300).log()[None]
    least, _ = smoothed_cross_entropy(best, torch.tensor([2]), **options)
    floor = smoothed_entropy(5, smoothing=0.1, convention=convention)
    assert float(least) == pytest.approx(floor, abs=1e-12)
    sure = torch.tensor([[0.0, 0.0, 30.0, 0.0, 0.0]], dtype=torch.float64)
    assert float(smoothed_cross_entropy(sure, torch.tensor([2]), **options)[0]) > floor + 1


def test_smoothing_that_makes_no_sense_is_refused():
    logits, targets = torch.zeros(1, 5), torch.tensor([2])
    with pytest.raises(InvalidOption, match="uniform or others"):
        smoothed_cross_entropy(logits, targets, smoothing=0.1, convention="other")
    with pytest.raises(InvalidOption, match="give its id as padding"):
        smoothed_cross_entropy(logits, targets, smoothing=0.1, convention="others_nopad")
    with pytest.raises(InvalidOption, match="below 1"):
        smoothed_cross_entropy(logits, targets, smoothing=1.0)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_second_derivatives_of_smoothed_losses_are_right(convention):
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([2, -100, 4, 1])

    def both(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return smoothed_cross_entropy(logits, targets, smoothing=0.1, convention=convention, padding=0)

    assert torch.autograd.gradcheck(both, logits)
    assert torch.autograd.gradgradcheck(both, logits)
