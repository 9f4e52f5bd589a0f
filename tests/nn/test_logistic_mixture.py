"""The discretised mixture of logistics: it sums to one, links the channels, and samples what it scores."""

import itertools

import pytest
import torch

from longspan.nn.logistic_mixture import log_likelihood, parameters, sample

LEVELS = 8


@pytest.mark.parametrize("channels", [1, 3])
def test_the_probabilities_of_all_values_sum_to_one(channels: int):
    torch.manual_seed(0)
    out = 2 * torch.randn(4, parameters(channels, 3), dtype=torch.float64)
    values = torch.tensor(list(itertools.product(range(LEVELS), repeat=channels)))
    for row in out:
        total = log_likelihood(row.expand(len(values), -1), values, LEVELS).exp().sum()
        assert total.item() == pytest.approx(1, abs=1e-4)


def test_bytes_sum_to_one_and_the_first_channel_is_a_mixture_of_its_own():
    """The 256 values of a byte; and red, whatever green and blue are, as the mixture of one channel."""
    torch.manual_seed(0)
    out = torch.randn(parameters(1, 10), dtype=torch.float64)
    total = log_likelihood(out.expand(256, -1), torch.arange(256)[:, None], 256).exp().sum()
    assert total.item() == pytest.approx(1, abs=1e-4)
    colour = torch.randn(parameters(3, 2), dtype=torch.float64)
    values = torch.tensor(list(itertools.product(range(LEVELS), repeat=3)))
    joint = log_likelihood(colour.expand(len(values), -1), values, LEVELS).exp().view((LEVELS,) * 3)
    rows = colour.view(2, -1)  # weight, three means, three log-scales, three links of each component
    red = torch.stack([rows[:, 0], rows[:, 1], rows[:, 4]], 1).flatten()
    alone = log_likelihood(red.expand(LEVELS, -1), torch.arange(LEVELS)[:, None], LEVELS).exp()
    torch.testing.assert_close(joint.sum((1, 2)), alone, rtol=0, atol=1e-4)


def test_one_component_is_a_difference_of_sigmoids():
    mean, log_scale = 0.3, -1.0
    out = torch.tensor([0.0, mean, log_scale], dtype=torch.float64)
    step = 2 / (LEVELS - 1)
    for value in range(LEVELS):
        x = value * step - 1
        edges = [(x - mean + side * step / 2) / torch.tensor(log_scale).exp() for side in (1, -1)]
        above = 1.0 if value == LEVELS - 1 else torch.sigmoid(edges[0]).item()
        below = 0.0 if value == 0 else torch.sigmoid(edges[1]).item()
        scored = log_likelihood(out, torch.tensor([value]), LEVELS).exp().item()
        assert scored == pytest.approx(above - below, abs=1e-6)


def test_later_channels_depend_on_earlier_ones_and_not_the_reverse():
    torch.manual_seed(0)
    out = torch.randn(parameters(3, 1), dtype=torch.float64)

    def marginal(red: int) -> torch.Tensor:
        values = torch.tensor([[red, green, blue] for green in range(LEVELS) for blue in range(LEVELS)])
        scores = log_likelihood(out.expand(len(values), -1), values, LEVELS).exp().view(LEVELS, LEVELS)
        return scores.sum(1) / scores.sum()

    assert not torch.allclose(marginal(0), marginal(LEVELS - 1))
    assert parameters(3, 10) == 100 and parameters(1, 10) == 30


def test_samples_have_the_frequencies_that_are_scored():
    torch.manual_seed(0)
    out = torch.randn(parameters(1, 2), dtype=torch.float64)
    drawn = sample(out.expand(20000, -1), 1, LEVELS, generator=torch.Generator().manual_seed(0))
    frequencies = torch.bincount(drawn.flatten(), minlength=LEVELS) / len(drawn)
    scored = log_likelihood(out.expand(LEVELS, -1), torch.arange(LEVELS)[:, None], LEVELS).exp()
    assert (frequencies - scored).abs().max() < 0.015
