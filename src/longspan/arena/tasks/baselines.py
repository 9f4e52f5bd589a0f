"""Trivial predictors for bytes, pairs and pixels, fitted on train; their accuracy on test."""

from collections.abc import Sequence

import numpy as np

from longspan.arena.tasks.examples import LabelledSequences, Splits

STRENGTHS = (0.003, 0.03, 0.3, 3.0)  # of the ridge penalty; the held-out split selects one
RUN = 5  # bytes of a run that two texts may share
SEEN = 4000  # pairs that the threshold is fitted on; more hardly change it


def majority(splits: Splits) -> float:
    """Predicts the most frequent label of train."""
    return float((splits.test.labels == np.bincount(splits.train.labels).argmax()).mean())


def bag_of_bytes(splits: Splits) -> float:
    """Ridge regression on the frequency of each byte; it sees neither order nor words."""
    train, held_out, test = (
        _shares(split, splits.vocabulary) for split in (splits.train, splits.held_out, splits.test)
    )
    mean, deviation = train.mean(0), train.std(0)
    deviation[deviation == 0] = 1
    train, held_out, test = ((split - mean) / deviation for split in (train, held_out, test))
    signs = 2.0 * splits.train.labels - 1
    middle = signs.mean()
    products, towards = train.T @ train / len(train), train.T @ (signs - middle) / len(train)
    best = (-1.0, np.zeros(0))
    for strength in STRENGTHS:
        weights = np.linalg.solve(products + strength * np.eye(len(products)), towards)
        right = float((((held_out @ weights + middle) > 0) == splits.held_out.labels).mean())
        best = max(best, (right, weights), key=lambda pair: pair[0])
    return float((((test @ best[1] + middle) > 0) == splits.test.labels).mean())


def _shares(examples: LabelledSequences, vocabulary: int) -> np.ndarray:
    """Square roots of the shares of each token, whose variance depends less on the frequency."""
    shares = np.empty((len(examples), vocabulary))
    for number in range(len(examples)):
        sequence = examples.sequence(number)
        shares[number] = np.bincount(sequence, minlength=vocabulary) / len(sequence)
    return np.sqrt(shares)


def shared_runs(splits: Splits) -> float:
    """Predicts by a threshold on the share of five-byte runs that two texts have in common."""
    train = splits.train if len(splits.train) <= SEEN else splits.train.select(range(SEEN))
    scores = _shared(train)
    order = np.argsort(scores, kind="stable")
    ranked = train.labels[order]
    # Correct predictions at each cut: zeros before it, ones after it.
    right = np.concatenate([[0], np.cumsum(ranked == 0)]) + np.concatenate([np.cumsum(ranked[::-1])[::-1], [0]])
    ends = np.concatenate([[True], np.diff(scores[order]) > 0, [True]])  # a cut cannot separate equal scores
    cut = int(np.where(ends, right, -1).argmax())
    threshold = scores[order][cut] if cut < len(order) else np.inf
    return float(((_shared(splits.test) >= threshold) == splits.test.labels).mean())


def _shared(examples: LabelledSequences) -> np.ndarray:
    scores = np.empty(len(examples))
    for number in range(len(examples)):
        one, other = (_runs(examples.sequence(number, text)) for text in (0, 1))
        common = len(np.intersect1d(one, other, assume_unique=True))
        scores[number] = common / max(len(one) + len(other) - common, 1)
    return scores


def _runs(sequence: np.ndarray) -> np.ndarray:
    """The distinct runs, as numbers."""
    numbers = np.zeros(max(len(sequence) - RUN + 1, 0), dtype=np.int64)
    for offset in range(RUN):
        numbers = numbers * 257 + sequence[offset : offset + len(numbers)]
    return np.unique(numbers)


def nearest_mean(splits: Splits) -> float:
    """Predicts the class with the nearest mean image."""
    return _nearest(splits, [_images(split) for split in (splits.train, splits.test)])


def mean_intensity(splits: Splits) -> float:
    """Predicts the class with the nearest mean brightness."""
    return _nearest(splits, [_images(split).mean(1, keepdims=True) for split in (splits.train, splits.test)])


def _images(examples: LabelledSequences) -> np.ndarray:
    return examples.tokens.reshape(len(examples), -1).astype(np.float32)


def _nearest(splits: Splits, features: Sequence[np.ndarray]) -> float:
    train, test = features
    classes = np.unique(splits.train.labels)
    means = np.stack([train[splits.train.labels == label].mean(0) for label in classes])
    distances = (means**2).sum(1) - 2 * test @ means.T
    return float((classes[distances.argmin(1)] == splits.test.labels).mean())


__all__ = ["bag_of_bytes", "majority", "mean_intensity", "nearest_mean", "shared_runs"]
