"""How texts are spoiled (spec section 26)."""

from collections import Counter

import numpy as np
import pytest

from longspan.data.text.noise import Noise, delete, infill, mask_tokens, permute, rotate, span_lengths

MASK = 1


def texts(count: int) -> list[list[np.ndarray]]:
    generator = np.random.default_rng(0)
    made = []
    for _ in range(count):
        ids = iter(range(2, 10_000))
        made.append([np.array([next(ids) for _ in range(size)]) for size in generator.integers(4, 40, size=12)])
    return made


def test_infilling_covers_the_share_it_is_told_to() -> None:
    generator = np.random.default_rng(1)
    covered = total = 0
    for sentences in texts(200):
        found = infill(sentences, 0.3, 3.0, generator, mask=MASK)
        for before, after in zip(sentences, found):
            kept = after[after != MASK]
            assert _subsequence(kept, before)  # so no span goes over the end of a sentence
            covered, total = covered + len(before) - len(kept), total + len(before)
    assert abs(covered / total - 0.3) < 0.01


def test_spans_are_of_poissons_distribution() -> None:
    generator = np.random.default_rng(0)
    lengths = np.array(span_lengths(300_000, 3.0, generator))
    assert abs(lengths.mean() - 3.0) < 0.1 and abs((lengths == 0).mean() - np.exp(-3)) < 0.005
    assert lengths.sum() == 300_000


def test_spans_of_length_zero_put_a_mask_in() -> None:
    generator = np.random.default_rng(0)
    inserted = spans = 0
    for sentences in texts(300):
        for after in infill(sentences, 0.3, 3.0, generator, mask=MASK):
            # Before a mask of length 0 and after it stand ids that follow each other.
            place = np.flatnonzero(after == MASK)
            spans += len(place)
            inner = place[(place > 0) & (place < len(after) - 1)]
            inserted += int((after[inner + 1] - after[inner - 1] == 1).sum())
    assert 0.03 < inserted / spans < 0.07


def test_a_text_that_is_covered_whole() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        found = infill([np.arange(2, 9), np.arange(9, 11)], 1.0, 3.0, generator, mask=MASK)
        assert all((each == MASK).all() for each in found)


def test_deletion_leaves_a_subsequence() -> None:
    generator = np.random.default_rng(0)
    sentences = texts(1)[0]
    found = delete(sentences, 0.3, generator)
    before, after = np.concatenate(sentences), np.concatenate(found)
    assert _subsequence(after, before) and 0.15 < 1 - len(after) / len(before) < 0.45


def test_masking_token_by_token() -> None:
    generator = np.random.default_rng(0)
    before = np.arange(2, 5000)
    after = mask_tokens([before], 0.2, generator, mask=MASK)[0]
    assert abs((after == MASK).mean() - 0.2) < 0.02 and np.array_equal(after[after != MASK], before[after != MASK])


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_permutation_keeps_the_sentences(share: float) -> None:
    generator = np.random.default_rng(0)
    sentences = texts(1)[0]
    found = permute(sentences, share, generator)
    assert Counter(each.tobytes() for each in found) == Counter(each.tobytes() for each in sentences)
    moved = sum(not np.array_equal(a, b) for a, b in zip(sentences, found))
    assert 0 < moved <= round(len(sentences) * share)


def test_rotation_is_cyclic() -> None:
    generator = np.random.default_rng(0)
    text = np.arange(20)
    starts = set()
    for _ in range(200):
        found = rotate(text, generator)
        assert np.array_equal(np.roll(found, found[0]), text)
        starts.add(int(found[0]))
    assert starts == set(range(20))


def test_noise_is_composed_and_drawn_again_alike() -> None:
    noise = Noise(delete=0.1, mask=0.1, random=0.5, rotate=1.0)
    drawn = np.arange(20_000, 20_100)
    first, again, other = (
        noise.apply(texts(1)[0], np.random.default_rng(seed), mask=MASK, drawn_from=drawn) for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert (first >= 20_000).any() and (first == MASK).any()


def test_without_noise_a_text_stays() -> None:
    sentences = texts(1)[0]
    found = Noise(permute=0.0, infill=0.0).apply(
        sentences, np.random.default_rng(0), mask=MASK, drawn_from=np.arange(5)
    )
    assert np.array_equal(found, np.concatenate(sentences))


def _subsequence(short: np.ndarray, long: np.ndarray) -> bool:
    rest = iter(long.tolist())
    return all(number in rest for number in short.tolist())
