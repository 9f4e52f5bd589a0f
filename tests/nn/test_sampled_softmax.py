"""Sampled softmax."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.sampled_softmax import LogUniform, sampled_cross_entropy


def test_the_log_uniform_law():
    """First draws follow the law (chi-square, 19 degrees of freedom: 43.8 at one in a thousand)."""
    sampler, generator = LogUniform(20, 1), torch.Generator().manual_seed(0)
    law = sampler.probability(torch.arange(20))
    assert float(law.sum()) == pytest.approx(1) and float(law[0]) == pytest.approx(math.log(2) / math.log(21))
    draws = 4000
    seen = torch.cat([sampler.draw(generator)[0] for _ in range(draws)]).bincount(minlength=20)
    assert float(((seen - draws * law) ** 2 / (draws * law)).sum()) < 43.8


def test_samples_are_different_and_counted():
    sampler = LogUniform(50, 20)
    ids, draws = sampler.draw(torch.Generator().manual_seed(1))
    assert len(ids.unique()) == 20 and draws >= 20
    assert torch.equal(ids, sampler.draw(torch.Generator().manual_seed(1))[0])
    expected = sampler.expected(torch.arange(50), draws)
    by_hand = 1 - (1 - math.log(1.5) / math.log(51)) ** draws
    assert float(expected[1]) == pytest.approx(by_hand) and (expected.diff() < 0).all()


def rows() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    x, weight = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((9, 8), (30, 8)))
    targets = torch.randint(0, 30, (9,), generator=generator)
    targets[4] = -100
    return x, weight, targets, torch.randn(30, generator=generator, dtype=torch.float64)


def test_all_samples_are_the_full_softmax():
    x, weight, targets, bias = rows()
    given = sampled_cross_entropy(x, weight, targets, bias, sampler=LogUniform(30, 30))
    wanted = cross_entropy(x @ weight.T + bias, targets, reduction="sum")
    torch.testing.assert_close(given, wanted, rtol=0, atol=1e-10)


def test_weighted_samples_estimate_the_sum_over_all_ids():
    """A sum over the samples, each divided by its expected count, is on average the sum over all ids.

    Only nearly: drawing stops with a new id, which introduces a small bias if there are few samples.
    """
    sampler, generator = LogUniform(2000, 200), torch.Generator().manual_seed(3)
    value = torch.rand(2000, generator=generator, dtype=torch.float64)
    sums = []
    for _ in range(300):
        ids, draws = sampler.draw(generator)
        sums.append((value[ids] / sampler.expected(ids, draws)).sum())
    assert float(torch.stack(sums).mean()) == pytest.approx(float(value.sum()), rel=0.02)


def test_the_loss_by_hand():
    """Each logit less the log of its expected count; a sample that is the target itself is left out."""
    x, weight, targets, bias = rows()
    sampler = LogUniform(30, 10)
    ids, draws = sampler.draw(torch.Generator().manual_seed(4))
    targets[0] = ids[0]
    wanted = torch.zeros((), dtype=torch.float64)
    for row, target in zip(x, targets):
        if target >= 0:
            words = torch.cat([target[None], ids[ids != target]])
            logits = weight[words] @ row + bias[words] - sampler.expected(words, draws).log()
            wanted -= logits.log_softmax(0)[0]
    generator = torch.Generator().manual_seed(4)
    given = sampled_cross_entropy(x, weight, targets, bias, sampler=sampler, generator=generator)
    torch.testing.assert_close(given, wanted, rtol=0, atol=1e-10)


def test_refusals_and_nothing_to_predict():
    x, weight, targets, _ = rows()
    with pytest.raises(InvalidOption, match="1 to 30, the vocabulary, not 31"):
        LogUniform(30, 31)
    with pytest.raises(InvalidInput, match="the sampler has 20 ids, but the output layer has 30 rows"):
        sampled_cross_entropy(x, weight, targets, sampler=LogUniform(20, 5))
    assert sampled_cross_entropy(x, weight, torch.full((9,), -100), sampler=LogUniform(30, 5)) == 0
