"""Predictions for the rows of a table without a network: the most frequent label or the mean, and a linear model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from longspan.data.table_files import EncodedRows
from longspan.tasks import baselines
from longspan.tasks.metric_sums import ClassMetrics, NumberMetrics

RIDGE = 1e-4  # weight of the squared coefficients, relative to the mean loss of the rows
FREQUENT = 100  # the most frequent categories of a column have coefficients of their own
STEPS = 200  # of L-BFGS


@dataclass
class RegressionMetrics(NumberMetrics):
    """Of numbers in the units of the data; `loss` is in units of the deviation in training, as training counts it."""

    deviation: float = 1.0

    def result(self) -> dict[str, float]:
        scores = super().result()
        true, predicted = np.array(sorted(zip(self.true, self.predicted))).reshape(-1, 2).T
        squared, spread = float(((true - predicted) ** 2).mean()), float(true.var())
        return {
            **scores,
            "loss": squared / self.deviation**2,
            "rmse": squared**0.5,
            "mae": float(np.abs(true - predicted).mean()),
            "r2": 1 - squared / spread if spread else 0.0,
        }


def features(rows: EncodedRows, values: Sequence[int], absent: np.ndarray) -> np.ndarray:
    """The inputs of a linear model: numbers, whether they are missing, categories one by one, and a constant.

    `values` are the numbers of categories of each column, and `absent` tells the columns with missing numbers.
    """
    gone = np.isnan(rows.numbers)
    parts = [np.where(gone, 0.0, rows.numbers), gone[:, absent], np.ones((len(rows.numbers), 1))]
    for column, count in enumerate(values):
        places = np.arange(1, min(count, FREQUENT) + 1)
        parts.append(rows.categories[:, column, None] == places)
    return np.concatenate(parts, 1).astype(np.float64)


def linear_regression(inputs: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The coefficients of least squares with a small ridge."""
    gram = inputs.T @ inputs + RIDGE * len(inputs) * np.eye(inputs.shape[1])
    found: np.ndarray = np.linalg.solve(gram, inputs.T @ target)
    return found


def logistic_regression(inputs: np.ndarray, labels: np.ndarray, count: int) -> np.ndarray:
    """The coefficients (inputs, labels) of a multinomial logistic model with a small ridge, by L-BFGS."""
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    weights = torch.zeros(inputs.shape[1], count, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> float:
        optimizer.zero_grad()
        value = cross_entropy(x @ weights, y) + RIDGE * weights.square().sum()
        value.backward()
        return float(value.detach())

    optimizer.step(loss)
    return weights.detach().numpy()


def label_scores(
    train: tuple[np.ndarray, np.ndarray], held_out: tuple[np.ndarray, np.ndarray], count: int
) -> dict[str, dict[str, float]]:
    """Of the most frequent label and of logistic regression, from inputs and labels."""
    predicted = (held_out[0] @ logistic_regression(*train, count)).argmax(1)
    metrics = ClassMetrics.of(held_out[1].tolist(), predicted.tolist(), count)
    return {
        "majority": baselines.majority(train[1].tolist(), held_out[1].tolist(), count),
        "logistic regression": {name: score for name, score in metrics.result().items() if name != "loss"},
    }


def number_scores(
    train: tuple[np.ndarray, np.ndarray], held_out: tuple[np.ndarray, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Of the mean and of linear regression, from inputs and numbers in the units of the data."""
    mean, deviation = float(train[1].mean()), float(train[1].std()) or 1.0
    guesses = {
        "the mean": np.full(len(held_out[1]), mean),
        "linear regression": mean + held_out[0] @ linear_regression(train[0], train[1] - mean),
    }
    kept = ("loss", "rmse", "mae", "r2")
    return {
        name: {key: RegressionMetrics(held_out[1].tolist(), guess.tolist(), deviation).result()[key] for key in kept}
        for name, guess in guesses.items()
    }


__all__ = ["RegressionMetrics", "features", "label_scores", "linear_regression", "logistic_regression", "number_scores"]
