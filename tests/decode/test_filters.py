"""Each step of sampling by itself."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.decode import filters
from longspan.decode.top_values import top_values

FOUR = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).double().log()


def kept(logits: Tensor) -> list[int]:
    return (logits[0] > float("-inf")).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(("p", "count"), [(0.81, 3), (0.79, 2), (1e-9, 1), (0.0, 1), (1.0, 4)])
def test_top_p_keeps_the_token_that_crosses_p(p: float, count: int):
    assert kept(filters.keep_top_p(FOUR, p)) == list(range(count))
    backwards = filters.keep_top_p(FOUR.flip(1), p)
    assert kept(backwards) == list(range(4 - count, 4))


@pytest.mark.parametrize(("share", "count"), [(0.2, 3), (0.4, 2), (1.0, 1), (0.0, 4)])
def test_min_p(share: float, count: int):
    assert kept(filters.keep_min_p(FOUR, share)) == list(range(count))


def test_top_p_of_a_large_vocabulary_whether_its_nucleus_is_small_or_not():
    logits = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0)).double()
    logits[0, :3] += 12  # a small nucleus in the first row, a large one in the second
    for p in (0.5, 0.9, 0.99):
        found = filters.keep_top_p(logits, p)
        for row in range(2):
            falling, order = logits[row].softmax(0).sort(descending=True, stable=True)
            count = int((falling.cumsum(0) < p).sum()) + 1
            assert set((found[row] > float("-inf")).nonzero()[:, 0].tolist()) == set(order[:count].tolist())


def test_of_equal_tokens_the_lower_ids_are_kept():
    equal = torch.zeros(1, 9)
    assert kept(filters.keep_top_k(equal, 4)) == [0, 1, 2, 3]
    assert kept(filters.keep_top_p(equal, 0.4)) == [0, 1, 2, 3]
    assert kept(filters.keep_top_k(torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]]), 3)) == [0, 1, 3]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 14))
def test_the_best_are_those_of_a_stable_sort(numbers: list[int], count: int):
    values = torch.tensor([numbers, numbers[::-1]]).float()
    values[values == 0] = float("-inf")
    expected, order = values.sort(dim=1, descending=True, stable=True)
    found, index = top_values(values, count)
    assert torch.equal(found, expected[:, :count]) and torch.equal(index, order[:, :count])


@pytest.mark.parametrize("logit", [2.0, -2.0])
def test_the_repetition_penalty_lowers_a_token_whatever_its_sign(logit: float):
    logits = torch.tensor([[logit, 0.5, -0.5]])
    after = filters.penalise_repetition(logits, torch.tensor([[True, False, False]]), 1.2)
    assert after.softmax(1)[0, 0] < logits.softmax(1)[0, 0]
    assert torch.equal(after[0, 1:], logits[0, 1:])


def test_penalties_by_count():
    after = filters.penalise_counts(torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 3.0]]), 0.5, 0.25)
    assert after.tolist() == [[0.0, -0.75, -1.75]]


def test_bans_that_would_leave_nothing_are_not_kept():
    logits = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    after = filters.ban(logits, torch.tensor([[True, True], [False, True]]))
    assert after.tolist() == [[1.0, 2.0], [1.0, float("-inf")]]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=3), st.integers(1, 4))
def test_ngrams_that_were_there(texts: list[list[int]], size: int):
    width = max(map(len, texts)) + 2  # room that holds zeros, which are no part of the text
    tokens = torch.tensor([text + [0] * (width - len(text)) for text in texts])
    found = filters.repeated_ngrams(tokens, torch.tensor([len(text) for text in texts]), size, 3)
    for row, text in enumerate(texts):
        there = {tuple(text[i : i + size]) for i in range(len(text) - size + 1)}
        tail = tuple(text[len(text) - size + 1 :]) if size > 1 else ()
        for token in range(3):
            assert bool(found[row, token]) == (len(tail) == size - 1 and (*tail, token) in there)


def test_draws_are_of_the_distribution_that_is_left():
    """Chi-square with 3 degrees of freedom: 11.345 is exceeded in 1 % of cases. The seed is fixed."""
    uniform = torch.rand(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    counts = filters.draw(logits.expand(100_000, 4), uniform).bincount(minlength=4).double()
    expected = 100_000 * torch.tensor([0.4, 0.3, 0.2, 0.1]).double()
    assert ((counts - expected) ** 2 / expected).sum() < 11.345
    left = filters.keep_top_p(logits, 0.6)  # the first two remain, with 4/7 and 3/7; one degree of freedom: 6.635
    counts = filters.draw(left.expand(100_000, 4), uniform).bincount(minlength=4).double()
    expected = 100_000 * torch.tensor([4 / 7, 3 / 7]).double()
    assert counts[2:].sum() == 0 and ((counts[:2] - expected) ** 2 / expected).sum() < 6.635


def test_the_ends_of_a_draw_are_tokens_that_may_come():
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]]).expand(3, 4)
    uniform = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert filters.draw(logits, uniform).tolist() == [1, 2, 2]
