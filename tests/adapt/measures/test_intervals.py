"""Intervals against counts by hand."""

from fractions import Fraction
from itertools import product
from math import sqrt

import pytest
import torch

from longspan.adapt.measures.intervals import NORMAL, paired_bootstrap, wilson


def test_wilson_solves_its_equation():
    low, high = wilson(3, 20)
    for edge in (low, high):  # |share - edge| = z · sqrt(edge (1 - edge) / n)
        assert abs(0.15 - edge) == pytest.approx(NORMAL * sqrt(edge * (1 - edge) / 20), abs=1e-12)
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3604)


def test_wilson_at_the_ends():
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == 1.0 and wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10)[1] == pytest.approx(NORMAL**2 / (10 + NORMAL**2))


def test_the_bootstrap_of_two_texts_counts_all_four_draws():
    """Means of two draws from (0, 1): 0, 1/2, 1/2, 1; a fortieth of the draws is below 0 with probability 1/4."""
    means = sorted(Fraction(a + b, 2) for a, b in product((0, 1), repeat=2))
    found = paired_bootstrap(torch.tensor([0.0, 1.0]))
    assert (found.mean, found.low, found.high) == (0.5, float(means[0]), float(means[-1]))


def test_equal_differences_have_an_interval_of_no_width():
    found = paired_bootstrap(torch.full((5,), 0.25))
    assert (found.mean, found.low, found.high) == (0.25, 0.25, 0.25)


def test_one_text_has_no_interval():
    found = paired_bootstrap(torch.tensor([0.5]))
    assert (found.mean, found.low, found.high) == (0.5, None, None)


def test_the_bootstrap_agrees_with_the_normal_distribution():
    values = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = paired_bootstrap(values)
    half = NORMAL * float(values.std(correction=0)) / 20
    assert found.low == pytest.approx(float(values.mean()) - half, abs=0.01)
    assert found.high == pytest.approx(float(values.mean()) + half, abs=0.01)
