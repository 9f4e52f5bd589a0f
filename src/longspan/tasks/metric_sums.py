"""Metrics of labels, numbers, tags and answers, in exact counts that add up over batches and processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from longspan.tasks import metrics
from longspan.tasks.base import Metrics

BINS, PARTS = 10, 10**6  # bins of confidence (Guo et al. 2017), and the unit in which probabilities are counted


@dataclass
class ClassMetrics(Metrics):
    """Of labels: the confusion matrix, and the nats of the right labels."""

    confusion: np.ndarray  # (true, predicted)
    nats: float = 0.0
    names: tuple[str, ...] = ()  # of the labels
    sure: np.ndarray = field(default_factory=lambda: np.zeros((BINS, 3), dtype=np.int64))  # texts, right, confidence

    @classmethod
    def of(
        cls,
        true: Sequence[int],
        predicted: Sequence[int],
        labels: int,
        nats: float = 0.0,
        *,
        names: Sequence[str] = (),
        confidence: Sequence[float] | None = None,
    ) -> "ClassMetrics":
        """`confidence` is the probability of the predicted label."""
        right, guessed = np.asarray(true, dtype=int), np.asarray(predicted, dtype=int)
        metrics = cls(np.zeros((labels, labels), dtype=np.int64), nats, tuple(names))
        np.add.at(metrics.confusion, (right, guessed), 1)
        if confidence is not None:
            parts = np.round(np.asarray(confidence) * PARTS).astype(np.int64)  # whole numbers add up exactly
            rows = np.stack([np.ones_like(parts), right == guessed, parts], 1)
            np.add.at(metrics.sure, np.minimum(parts * BINS // PARTS, BINS - 1), rows)
        return metrics

    def add(self, other: Metrics) -> None:
        assert isinstance(other, ClassMetrics)
        self.confusion, self.nats = self.confusion + other.confusion, self.nats + other.nats
        self.sure = self.sure + other.sure

    def result(self) -> dict[str, float]:
        total = int(self.confusion.sum())
        result = {"loss": self.nats / max(total, 1), "accuracy": float(np.trace(self.confusion)) / max(total, 1)}
        if len(self.confusion) == 2:
            result["f1"] = metrics.f1_of(self.confusion, 1)
        result |= {"macro_f1": metrics.macro_f1(self.confusion), "matthews": metrics.matthews(self.confusion)}
        if self.sure.any():
            gaps = np.abs(self.sure[:, 1] * PARTS - self.sure[:, 2])
            result["calibration_error"] = float(gaps.sum()) / (total * PARTS)
        return result

    def table(self) -> list[dict[str, Any]]:
        """For each label: how often it occurs, and what was predicted for it."""
        return [
            {"label": name, "support": int(row.sum()), "said": dict(zip(self.names, map(int, row)))}
            for name, row in zip(self.names, self.confusion)
        ]


@dataclass
class NumberMetrics(Metrics):
    """Of numbers: all of them, because rank correlations need them."""

    true: list[float] = field(default_factory=list)
    predicted: list[float] = field(default_factory=list)

    def add(self, other: Metrics) -> None:
        assert isinstance(other, NumberMetrics)
        self.true.extend(other.true)
        self.predicted.extend(other.predicted)

    def result(self) -> dict[str, float]:
        # Sums of floats depend on their order, and the order on the number of processes.
        pairs = sorted(zip(self.true, self.predicted))
        true, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        errors = [(a - b) ** 2 for a, b in pairs]
        return {
            "loss": float(np.sum(errors)) / max(len(errors), 1),
            "pearson": metrics.pearson(true, predicted) if pairs else 0.0,
            "spearman": metrics.spearman(true, predicted) if pairs else 0.0,
        }


@dataclass
class TagMetrics(Metrics):
    """Of tags: the true and predicted tag by sentence and word, so that windows of a sentence are joined."""

    tags: dict[int, dict[int, tuple[str, str]]] = field(default_factory=dict)
    nats: float = 0.0

    def add(self, other: Metrics) -> None:
        assert isinstance(other, TagMetrics)
        for sentence, words in other.tags.items():
            self.tags.setdefault(sentence, {}).update(words)
        self.nats += other.nats

    def result(self) -> dict[str, float]:
        sentences = [[words[index] for index in sorted(words)] for _, words in sorted(self.tags.items())]
        pairs = [pair for sentence in sentences for pair in sentence]
        result = {
            "loss": self.nats / max(len(pairs), 1),
            "accuracy": sum(true == said for true, said in pairs) / max(len(pairs), 1),
        }
        for strict in (False, True):
            scores = entity_scores([list(zip(*sentence)) for sentence in sentences if sentence], strict=strict)
            result.update({f"strict_{name}" if strict else name: score for name, score in scores.items()})
        return result


def entity_scores(sentences: Sequence[Sequence[Sequence[str]]], *, strict: bool = False) -> dict[str, float]:
    """Precision, recall and F1 of whole entities over all sentences, each a pair of true and predicted tags."""
    right = meant = said = 0
    for true, predicted in sentences:
        one, other = metrics.entities(true, strict=strict), metrics.entities(predicted, strict=strict)
        right, meant, said = right + len({*one} & {*other}), meant + len(one), said + len(other)
    return {
        "precision": right / said if said else 0.0,
        "recall": right / meant if meant else 0.0,
        "f1": 2 * right / (meant + said) if meant + said else 0.0,
    }


@dataclass
class Answered:
    """The answers to one question with their scores, best first, and the score of "no answer"."""

    gold: tuple[str, ...]
    null: float
    texts: list[tuple[float, str]]

    def best(self, threshold: float | None) -> str:
        """The best answer, or "" if "no answer" scores better by more than `threshold` (None: never)."""
        if not self.texts:
            return ""
        score, text = self.texts[0]
        return "" if threshold is not None and self.null - score > threshold else text


@dataclass
class AnswerMetrics(Metrics):
    """Of answers: the best ones to each question over all of its windows."""

    answers: dict[int, Answered] = field(default_factory=dict)
    nats: float = 0.0
    windows: int = 0
    keep: int = 20

    def add(self, other: Metrics) -> None:
        assert isinstance(other, AnswerMetrics)
        self.nats, self.windows = self.nats + other.nats, self.windows + other.windows
        for number, answered in other.answers.items():
            mine = self.answers.setdefault(number, Answered(answered.gold, answered.null, []))
            # A window without the answer says "no answer"; it holds only if all windows say so.
            mine.null = min(mine.null, answered.null)
            mine.texts = sorted([*mine.texts, *answered.texts], key=lambda pair: (-pair[0], pair[1]))[: self.keep]

    def result(self) -> dict[str, float]:
        answers = [answered for _, answered in sorted(self.answers.items())]
        unanswerable = [answered for answered in answers if not answered.gold]
        threshold = 0.0 if unanswerable else None
        result = {"loss": self.nats / max(self.windows, 1), **_answer_scores(answers, threshold)}
        if unanswerable:
            answerable = [answered for answered in answers if answered.gold]
            result["answerable_f1"] = _answer_scores(answerable, threshold)["f1"]
            result["unanswerable_f1"] = _answer_scores(unanswerable, threshold)["f1"]
            result["best_threshold"], result["best_f1"] = best_threshold(answers)
        return result


def _answer_scores(answers: Sequence[Answered], threshold: float | None) -> dict[str, float]:
    said = [(answered.best(threshold), answered.gold) for answered in answers]
    count = max(len(said), 1)
    return {
        "exact": 100 * sum(metrics.exact_match(text, gold) for text, gold in said) / count,
        "f1": 100 * sum(metrics.answer_f1(text, gold) for text, gold in said) / count,
    }


def best_threshold(answers: Sequence[Answered]) -> tuple[float, float]:
    """The threshold at which F1 is best, and that F1: never worse than at 0."""
    scored = sorted(
        (answered.null - answered.texts[0][0] if answered.texts else float("inf"), number)
        for number, answered in enumerate(answers)
    )
    total = sum(metrics.answer_f1("", answered.gold) for answered in answers)  # with "no answer" to every question
    gains = {
        number: metrics.answer_f1(answers[number].best(None), answers[number].gold)
        - metrics.answer_f1("", answers[number].gold)
        for _, number in scored
    }
    best, threshold = total, scored[0][0] - 1.0 if scored else 0.0
    for index, (margin, number) in enumerate(scored):
        total += gains[number]
        last = index + 1 == len(scored)
        if total > best and np.isfinite(margin) and (last or scored[index + 1][0] > margin):
            best, threshold = total, margin
    at_zero = _answer_scores(answers, 0.0)["f1"]
    best_f1 = 100 * best / max(len(answers), 1)
    return (float(threshold), best_f1) if best_f1 > at_zero else (0.0, at_zero)


__all__ = [
    "AnswerMetrics",
    "Answered",
    "ClassMetrics",
    "NumberMetrics",
    "TagMetrics",
    "best_threshold",
    "entity_scores",
]
