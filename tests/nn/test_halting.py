"""Adaptive computation time, its transition and the body that it halts."""

import pytest
import torch
from torch import Tensor, nn

from longspan.errors import InvalidOption, UnknownName
from longspan.nn.convolution import SeparableConvolution
from longspan.nn.halting import Halting, HaltingProgress


def run(halting: Halting, probabilities: list[float], key_mask: Tensor | None = None) -> tuple[Tensor, HaltingProgress]:
    """One position, whose state after step t is the t-th unit vector: the output is the weight of each step."""
    steps = len(probabilities)
    state = torch.zeros(1, 1, steps, dtype=torch.float64)
    progress = halting.start(state, key_mask)
    for step, probability in enumerate(probabilities):
        after = torch.eye(steps, dtype=torch.float64)[step].expand(1, 1, -1)
        last = step == steps - 1
        state, progress = halting.step(
            progress, torch.full((1, 1), probability, dtype=torch.float64), state, after, last=last
        )
    return state[0, 0], progress


def test_the_hand_example():
    """p = (.3, .3, .2, .9): the fourth step would pass the threshold, so it gets what is left."""
    _, progress = run(Halting(4, combine="accumulate"), [0.3, 0.3, 0.2, 0.9])
    torch.testing.assert_close(progress.output[0, 0], torch.tensor([0.3, 0.3, 0.2, 0.2], dtype=torch.float64))
    _, progress = run(Halting(4, combine="listing"), [0.3, 0.3, 0.2, 0.9])
    torch.testing.assert_close(progress.output[0, 0], torch.tensor([0.1344, 0.192, 0.16, 0.2], dtype=torch.float64))
    assert not progress.running.any() and progress.done
    assert progress.updates.item() == 4 and abs(progress.remainder.item() - 0.2) < 1e-9
    assert abs(Halting(4).cost(progress).item() - 0.01 * 4.2) < 1e-9


def test_a_step_after_halting_has_no_weight():
    _, progress = run(Halting(4, combine="accumulate"), [0.6, 0.6, 0.1, 0.1])
    torch.testing.assert_close(progress.output[0, 0], torch.tensor([0.6, 0.4, 0, 0], dtype=torch.float64))
    assert progress.updates.item() == 2


def test_the_threshold_is_what_must_be_passed():
    _, progress = run(Halting(2, threshold=0.5, combine="accumulate"), [0.5, 0.1])
    torch.testing.assert_close(progress.output[0, 0], torch.tensor([0.5, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("force", [False, True])
def test_the_step_limit(force: bool):
    _, progress = run(Halting(3, combine="accumulate", force_remainder=force), [0.1, 0.2, 0.3])
    torch.testing.assert_close(
        progress.output[0, 0], torch.tensor([0.1, 0.2, 0.7 if force else 0.3], dtype=torch.float64)
    )
    assert abs(progress.remainder.item() - (0.7 if force else 0.0)) < 1e-9
    assert progress.running.item() is not force and progress.updates.item() == 3


@pytest.mark.parametrize(("halted", "step"), [("evolve", 3), ("copy", 1)])
def test_what_others_read_of_a_halted_position(halted: str, step: int):
    state, _ = run(Halting(4, halted=halted), [0.6, 0.6, 0.1, 0.1])
    assert state.argmax().item() == step


def test_accumulated_weights_sum_up_to_1_for_all_that_halted():
    halting = Halting(1, combine="accumulate")
    ones = torch.ones(3, 50, 1, dtype=torch.float64)
    progress = halting.start(ones)
    for _ in range(6):
        _, progress = halting.step(progress, torch.rand(3, 50).double(), ones, ones)
    assert (~progress.running).sum() > 100
    halted = progress.output[~progress.running]
    torch.testing.assert_close(halted, torch.ones_like(halted))
    assert (progress.output[progress.running] < 0.99).all()


def test_padding_does_not_run_and_costs_nothing():
    halting = Halting(2, ponder=1.0)
    x, mask = torch.ones(1, 3, 2), torch.tensor([[True, True, False]])
    progress = halting.start(x, mask)
    _, progress = halting.step(progress, torch.tensor([[0.999, 0.999, 0.0]]), x, x)
    assert progress.done and (progress.output[0, 2] == 0).all()
    assert progress.updates.tolist() == [[1, 1, 0]]
    assert halting.cost(progress, mask).item() == 2.0  # one step, and all of the remainder
    nothing = halting.start(x, torch.zeros(1, 3, dtype=torch.bool))
    assert nothing.done and halting.cost(nothing, torch.zeros(1, 3, dtype=torch.bool)) == 0


def test_the_unit_starts_with_the_bias_1():
    halting = Halting(8)
    assert halting.unit.bias.item() == 1
    torch.testing.assert_close(halting.probability(torch.zeros(1, 1, 8)), torch.tensor([[1.0]]).sigmoid())
    assert halting.half().probability(torch.zeros(1, 1, 8).half()).dtype == torch.float32


def test_the_cost_moves_the_unit():
    halting = Halting(4).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    progress = halting.start(x)
    for _ in range(3):
        _, progress = halting.step(progress, halting.probability(x), x, x)
    halting.cost(progress).backward()
    assert halting.unit.weight.grad.abs().sum() > 0 and halting.unit.bias.grad.abs() > 0


def test_invalid_input_is_refused():
    with pytest.raises(UnknownName, match="no halting variant is called 'sum'"):
        Halting(4, combine="sum")
    with pytest.raises(InvalidOption, match="threshold must be above 0 and below 1"):
        Halting(4, threshold=1.0)
    with pytest.raises(InvalidOption, match="a convolution has no gate"):
        SeparableConvolution(4, 8, "swiglu", causal=True)
    with pytest.raises(InvalidOption, match="kernels must be odd"):
        SeparableConvolution(4, 8, causal=True, kernels=(2, 5))


# The transition by separable convolutions


@pytest.mark.parametrize("causal", [False, True])
def test_a_separable_convolution_is_two_of_torchs(causal: bool):
    own = SeparableConvolution(4, 6, causal=causal).double()
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    y = x.mT
    for filters, linear, width in ((own.first, own.inner, 4), (own.second, own.outer, 6)):
        kernel = filters.shape[-1]
        layer = nn.Conv1d(width, width, kernel, groups=width, bias=False, padding=kernel - 1 if causal else kernel // 2)
        layer = layer.double()
        layer.weight.data = filters.data
        y = linear(layer(y)[..., :9].mT).mT
        if linear is own.inner:
            y = y.relu()
    torch.testing.assert_close(own(x), y.mT)


def test_a_causal_convolution_streams_and_does_not_see_padding():
    own = SeparableConvolution(4, 6, causal=True).double()
    x = torch.randn(2, 11, 4, dtype=torch.float64)
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[0, :3] = False
    state, seen = own.start(2, dtype=torch.float64), []
    for piece, kept in zip(x.split([1, 2, 1, 7], 1), mask.split([1, 2, 1, 7], 1)):
        out, state = own.extend(piece, state, key_mask=kept)
        seen.append(out)
    torch.testing.assert_close(torch.cat(seen, 1), own(x, key_mask=mask))
    torch.testing.assert_close(own(x, key_mask=mask)[:1, 3:], own(x[:1, 3:]))


def test_a_two_sided_convolution_does_not_see_padding():
    own = SeparableConvolution(4, 6, causal=False).double()
    x = torch.randn(1, 11, 4, dtype=torch.float64)
    mask = torch.arange(11)[None] < 7
    torch.testing.assert_close(own(x, key_mask=mask)[:, :7], own(x[:, :7]))
