"""Which tokens are hidden, and by what (spec section 16)."""

from typing import Any

import numpy as np
import pytest

from longspan.data.text.masking import Masking, choose, hide
from longspan.errors import InvalidOption

MASK, VOCABULARY, LENGTH = 4, 30_000, 500


def rows(options: Masking, count: int, **given: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Texts of ids ≥ 5 between two special tokens: ids, chosen, hidden, words."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(count):
        ids = generator.integers(5, VOCABULARY, size=LENGTH)
        candidates = np.ones(LENGTH, dtype=bool)
        candidates[[0, -1]] = False
        words = (generator.random(LENGTH) < 0.7).cumsum()
        words[-1] += 1
        words[1:] += 1
        chosen = choose(candidates, words, options, generator)
        hidden = hide(ids, chosen, words, options, generator, mask=MASK, drawn_from=np.arange(VOCABULARY))
        found.append((ids, chosen, hidden, words))
    return tuple(np.stack(each) for each in zip(*found))  # type: ignore[return-value]


@pytest.mark.parametrize("sampler", ["exact", "bernoulli"])
def test_shares_over_a_million_tokens(sampler: str) -> None:
    ids, chosen, hidden, _ = rows(Masking(sampler=sampler), 2000)
    everything = ids.size
    assert abs(chosen.sum() / everything - 0.15) < 0.001
    masked = (hidden == MASK).sum() / everything
    kept = (chosen & (hidden == ids)).sum() / everything
    other = (chosen & (hidden != ids) & (hidden != MASK)).sum() / everything
    assert abs(masked - 0.12) < 0.001 and abs(other - 0.015) < 0.0005 and abs(kept - 0.015) < 0.0005
    assert np.array_equal(hidden[~chosen], ids[~chosen])
    assert not chosen[:, [0, -1]].any()


def test_the_exact_number_is_that_of_the_released_code() -> None:
    _, chosen, _, _ = rows(Masking(), 20)
    assert (chosen.sum(1) == 75).all()
    _, chosen, _, _ = rows(Masking(most=20), 20)
    assert (chosen.sum(1) == 20).all()
    generator = np.random.default_rng(0)
    candidates = np.array([False, True, False])
    assert choose(candidates, np.arange(3), Masking(), generator).tolist() == [False, True, False]
    assert not choose(np.zeros(2, dtype=bool), np.arange(2), Masking(), generator).any()


@pytest.mark.parametrize("sampler", ["exact", "bernoulli"])
def test_no_word_is_partly_chosen(sampler: str) -> None:
    _, chosen, _, words = rows(Masking(sampler=sampler, whole_words=True), 200)
    for own, word in zip(chosen, words):
        assert len(set(word[own]) & set(word[~own])) == 0
    assert abs(chosen.mean() - 0.15) < 0.01


def test_the_draw_is_per_piece_or_word_or_none() -> None:
    ids, chosen, hidden, words = rows(Masking(whole_words=True, replace_per="word"), 200)
    for row in range(len(ids)):
        for word in set(words[row][chosen[row]]):
            pieces = words[row] == word
            assert len({"mask" if now == MASK else "other" for now in hidden[row][pieces]}) == 1
    ids, chosen, hidden, _ = rows(Masking(whole_words=True, replace_per="mask_only"), 50)
    assert np.array_equal(hidden == MASK, chosen)


def test_shares_that_are_too_much() -> None:
    with pytest.raises(InvalidOption, match="shares of the chosen"):
        Masking(mask=0.9, random=0.2)
