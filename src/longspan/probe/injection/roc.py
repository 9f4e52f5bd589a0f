"""The ROC curve of scores, its area with an interval, and a threshold for a rate of false alarms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from longspan.adapt.measures.intervals import NORMAL, wilson
from longspan.errors import InvalidInput


@dataclass(frozen=True)
class Roc:
    """Points (false alarms, found), from the highest threshold to the lowest, and the area below them."""

    points: list[tuple[float, float]]
    auc: float
    low: float
    high: float


def roc(scores: Sequence[float], labels: Sequence[int]) -> Roc:
    """The curve of scores; label 1 is what should score high. Equal scores are one point.

    The area is the chance that a positive scores above a negative, ties counting half. Its 95 % interval is DeLong's
    (1988) on the logit scale. If all pairs are in order, that variance is 0; then the lower end is Wilson's for as many
    trials as the smaller group has rows.
    """
    positive = [score for score, label in zip(scores, labels) if label]
    negative = [score for score, label in zip(scores, labels) if not label]
    if not positive or not negative:
        raise InvalidInput("a ROC curve needs rows of both labels")
    points = [(0.0, 0.0)]
    for threshold in sorted({*scores}, reverse=True):
        points.append((_share(negative, threshold), _share(positive, threshold)))
    above = [_beaten(score, negative) for score in positive]
    below = [1 - _beaten(score, positive) for score in negative]
    area = sum(above) / len(above)
    variance = _variance(above) / len(above) + _variance(below) / len(below)
    few = min(len(positive), len(negative))
    if area in (0.0, 1.0) or variance == 0:
        low, high = wilson(round(area * few), few)
    else:
        half = NORMAL * math.sqrt(variance) / (area * (1 - area))
        logit = math.log(area / (1 - area))
        low, high = (1 / (1 + math.exp(-end)) for end in (logit - half, logit + half))
    return Roc(points, area, low, high)


def choose_threshold(scores: Sequence[float], labels: Sequence[int], false_alarms: float = 0.02) -> float:
    """The threshold that finds most positives with at most this share of false alarms; half-way between two scores."""
    values = sorted({*scores}, reverse=True)
    negative = [score for score, label in zip(scores, labels) if not label]
    best = math.nextafter(values[0], math.inf)
    for at, value in enumerate(values):
        if _share(negative, value) > false_alarms:
            break
        best = (value + values[at + 1]) / 2 if at + 1 < len(values) else value
    return best


def _share(scores: Sequence[float], threshold: float) -> float:
    return sum(score >= threshold for score in scores) / len(scores)


def _beaten(score: float, others: Sequence[float]) -> float:
    return sum((other < score) + 0.5 * (other == score) for other in others) / len(others)


def _variance(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


__all__ = ["Roc", "choose_threshold", "roc"]
