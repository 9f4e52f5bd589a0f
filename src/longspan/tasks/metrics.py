"""Metrics by their usual definitions; tests compare them with the packages that the field uses."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

# Labels


def f1_of(confusion: np.ndarray, label: int) -> float:
    """The harmonic mean of precision and recall of one label, 0 where undefined; `confusion` is (true, predicted)."""
    right = float(confusion[label, label])
    total = float(confusion[label].sum() + confusion[:, label].sum())
    return 2 * right / total if total else 0.0


def macro_f1(confusion: np.ndarray) -> float:
    """The mean of F1 over the labels that occur or are predicted."""
    present = [label for label in range(len(confusion)) if confusion[label].sum() + confusion[:, label].sum()]
    return float(np.mean([f1_of(confusion, label) for label in present])) if present else 0.0


def matthews(confusion: np.ndarray) -> float:
    """The correlation of true and predicted labels (Gorodkin 2004); 0 where either is constant."""
    counts = confusion.astype(object)  # exact integers, however large
    total, right = counts.sum(), np.trace(counts)
    true, said = counts.sum(1), counts.sum(0)
    below = float(total * total - (said * said).sum()) * float(total * total - (true * true).sum())
    return float(total * right - (true * said).sum()) / below**0.5 if below > 0 else 0.0


# Numbers


def pearson(one: Sequence[float], other: Sequence[float]) -> float:
    """The linear correlation; 0 where either is constant."""
    a, b = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    a, b = a - a.mean(), b - b.mean()
    below = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / below if below > 0 else 0.0


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The correlation of ranks; equal values share the mean of theirs."""
    return pearson(ranks(one), ranks(other))


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 1."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_ranks = last - (counts - 1) / 2  # equal values share the mean of their ranks
    return [float(rank) for rank in mean_ranks[inverse]]


# Tags

Entity = tuple[str, int, int]  # its type, and its first and last word


def entities(tags: Sequence[str], *, strict: bool = False) -> list[Entity]:
    """The entities that IOB tags mean.

    As conlleval reads them, an I- that continues nothing opens an entity; `strict` IOB2 opens one by B- only.
    """
    found: list[Entity] = []
    kind, start = None, 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, own = tag.partition("-")
        if prefix == "I" and own == kind:
            continue
        if kind is not None:
            found.append((kind, start, place - 1))
        opens = prefix == "B" or (prefix == "I" and not strict)
        kind, start = (own if opens else None), place
    return found


def to_iob2(tags: Sequence[str]) -> list[str]:
    """IOB1, where B- only parts neighbours of one type, as IOB2, where every entity begins with B-; IOB2 stays."""
    converted = []
    before = "O"
    for tag in tags:
        opens = tag.startswith("I-") and before[2:] != tag[2:]
        converted.append(f"B-{tag[2:]}" if opens else tag)
        before = tag
    return converted


def to_iob1(tags: Sequence[str]) -> list[str]:
    """IOB2 as IOB1."""
    found = []
    before = "O"
    for tag in tags:
        found.append(f"I-{tag[2:]}" if tag.startswith("B-") and before[2:] != tag[2:] else tag)
        before = tag
    return found


# Answers (the official script of SQuAD)

ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(answer: str) -> str:
    """In small letters, without punctuation and articles, and with single spaces."""
    bare = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, gold: Sequence[str]) -> float:
    """Whether it is one of the right answers; without any, the empty one is right."""
    return float(any(normalise(answer) == normalise(right) for right in gold or [""]))


def answer_f1(answer: str, gold: Sequence[str]) -> float:
    """The overlap of words with the right answer that is nearest; of empty ones, whether both are."""
    return max(_overlap(normalise(answer).split(), normalise(right).split()) for right in gold or [""])


def _overlap(said: list[str], right: list[str]) -> float:
    if not said or not right:
        return float(said == right)
    common = sum((Counter(said) & Counter(right)).values())
    return 2 * common / (len(said) + len(right))


__all__ = [
    "Entity",
    "answer_f1",
    "entities",
    "exact_match",
    "f1_of",
    "macro_f1",
    "matthews",
    "normalise",
    "pearson",
    "ranks",
    "spearman",
    "to_iob1",
    "to_iob2",
]
