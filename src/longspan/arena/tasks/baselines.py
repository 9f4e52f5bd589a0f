"""Predictors of bytes, pairs and pixels that read next to nothing; each is fitted on train and counted on test."""

from collections.abc import Sequence

import numpy as np

from longspan.arena.tasks.examples import LabelledSequences, Splits

STRENGTHS = (0.003, 0.03, 0.3, 3.0)  # of the penalty, of which what is held out chooses one
RUN = 5  # bytes of what two texts may share
SEEN = 4000  # pairs that one threshold is fitted on; more do not move it


def majority(splits: Splits) -> float:
    """Always the label that train has most often."""
    return float((splits.test.labels == np.bincount(splits.train.labels).argmax()).mean())


def bag_of_bytes(splits: Splits) -> float:
    """A linear function of how often each byte occurs, fitted by least squares; order and words are not seen."""
    train, held_out, test = (_shares(part, splits.vocabulary) for part in (splits.train, splits.held_out, splits.test))
    mean, deviation = train.mean(0), train.std(0)
    deviation[deviation == 0] = 1
    train, held_out, test = ((part - mean) / deviation for part in (train, held_out, test))
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
    """Square roots of the shares of each token, whose spread depends less on how frequent it is."""
    found = np.empty((len(examples), vocabulary))
    for number in range(len(examples)):
        sequence = examples.sequence(number)
        found[number] = np.bincount(sequence, minlength=vocabulary) / len(sequence)
    return np.sqrt(found)


def shared_runs(splits: Splits) -> float:
    """Whether the two texts share more runs of five bytes, as a part of all they have, than a threshold from train."""
    train = splits.train if len(splits.train) <= SEEN else splits.train.some(range(SEEN))
    scores = _shared(train)
    order = np.argsort(scores, kind="stable")
    ranked = train.labels[order]
    # Right at each cut: zeros before it and ones from it on.
    right = np.concatenate([[0], np.cumsum(ranked == 0)]) + np.concatenate([np.cumsum(ranked[::-1])[::-1], [0]])
    ends = np.concatenate([[True], np.diff(scores[order]) > 0, [True]])  # equal scores cannot be parted
    cut = int(np.where(ends, right, -1).argmax())
    threshold = scores[order][cut] if cut < len(order) else np.inf
    return float(((_shared(splits.test) >= threshold) == splits.test.labels).mean())


def _shared(examples: LabelledSequences) -> np.ndarray:
    found = np.empty(len(examples))
    for number in range(len(examples)):
        one, other = (_runs(examples.sequence(number, text)) for text in (0, 1))
        both = len(np.intersect1d(one, other, assume_unique=True))
        found[number] = both / max(len(one) + len(other) - both, 1)
    return found


def _runs(sequence: np.ndarray) -> np.ndarray:
    """Each run once, as a number."""
    numbers = np.zeros(max(len(sequence) - RUN + 1, 0), dtype=np.int64)
    for place in range(RUN):
        numbers = numbers * 257 + sequence[place : place + len(numbers)]
    return np.unique(numbers)


def nearest_mean(splits: Splits) -> float:
    """The class whose mean image is nearest."""
    return _nearest(splits, [_images(part) for part in (splits.train, splits.test)])


def mean_intensity(splits: Splits) -> float:
    """The class whose mean brightness is nearest to that of the image."""
    return _nearest(splits, [_images(part).mean(1, keepdims=True) for part in (splits.train, splits.test)])


def _images(examples: LabelledSequences) -> np.ndarray:
    return examples.tokens.reshape(len(examples), -1).astype(np.float32)


def _nearest(splits: Splits, features: Sequence[np.ndarray]) -> float:
    train, test = features
    classes = np.unique(splits.train.labels)
    means = np.stack([train[splits.train.labels == label].mean(0) for label in classes])
    distances = (means**2).sum(1) - 2 * test @ means.T
    return float((classes[distances.argmin(1)] == splits.test.labels).mean())


__all__ = ["bag_of_bytes", "majority", "mean_intensity", "nearest_mean", "shared_runs"]
