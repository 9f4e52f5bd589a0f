"""Baselines without a neural network, printed next to every score."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from longspan.data.examples import Example
from longspan.tasks.metric_sums import ClassMetrics, entity_scores


def majority(true: Sequence[int], held_out: Sequence[int], labels: int) -> dict[str, float]:
    """Predicts the most frequent label of the training texts."""
    most = Counter(true).most_common(1)[0][0]
    return _scores(ClassMetrics.of(held_out, [most] * len(held_out), labels))


def bag_of_words(train: Sequence[Example], held_out: Sequence[Example], labels: int) -> dict[str, float]:
    """Naive Bayes on which tokens a text has (Maron 1961), with one added to each count."""
    size = 1 + max(max(example.ids) for example in (*train, *held_out))
    counts, texts = np.ones((labels, size)), np.zeros(labels)
    for example in train:
        label = int(example.whole["label"])
        np.add.at(counts[label], np.unique(example.ids), 1)
        texts[label] += 1
    seen = np.log(counts) - np.log(texts + 2)[:, None]
    first = np.log(np.maximum(texts, 1e-9)) - np.log(texts.sum())
    said = [int((first + seen[:, np.unique(example.ids)].sum(1)).argmax()) for example in held_out]
    return _scores(ClassMetrics.of([int(each.whole["label"]) for each in held_out], said, labels))


def _scores(metrics: ClassMetrics) -> dict[str, float]:
    return {name: value for name, value in metrics.result().items() if name != "loss"}


def usual_tags(
    train: Sequence[tuple[Sequence[str], Sequence[str]]], held_out: Sequence[tuple[Sequence[str], Sequence[str]]]
) -> dict[str, float]:
    """Predicts the most frequent tag of each word in training; O for unseen words."""
    seen: dict[str, Counter[str]] = {}
    for words, tags in train:
        for word, tag in zip(words, tags):
            seen.setdefault(word, Counter())[tag] += 1
    usual = {word: tags.most_common(1)[0][0] for word, tags in seen.items()}
    return entity_scores([(tags, [usual.get(word, "O") for word in words]) for words, tags in held_out])


__all__ = ["bag_of_words", "majority", "usual_tags"]
