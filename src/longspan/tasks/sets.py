"""Sets of numbers, drawn without end: their maximum, and the clusters that they come from (Lee et al. 2019).

- `maximum`: the largest of 1 to `largest` numbers. Error: the mean absolute difference.
- `clusters`: points of a mixture of Gaussians in the plane. The model gives weights, means and deviations of the
  mixture (amortised clustering), and is scored by the log-likelihood of the points.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from longspan.config import option
from longspan.data.base import Batch, Data
from longspan.data.order import draws
from longspan.data.text.blocks import Batches
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidOption
from longspan.models.base import Model
from longspan.models.image_base import SetModel
from longspan.tasks import starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss

PROBLEMS = ("maximum", "clusters")
HIGHEST = 100.0  # numbers are from 0 to this
DEVIATION, REACH = 0.3, 4.0  # of a cluster's points; its centre is within this distance in each direction


class SetData(Data):
    """Examples by seed, epoch and number; those of held-out data are the same in every epoch."""

    def __init__(
        self,
        problem: str,
        *,
        smallest: int,
        largest: int,
        clusters: int,
        examples: int,
        batch: int,
        seed: int,
        fixed: bool,
    ) -> None:
        self.problem, self.sizes, self.clusters = problem, (smallest, largest), clusters
        self.examples, self.batch, self.seed, self.fixed = examples, batch, seed, fixed

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        return Batches(range(self.examples), self.batch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        rows = [self.example(number, 0 if self.fixed else epoch) for number in numbers]
        longest = max(len(elements) for elements, _ in rows)
        elements = torch.zeros(len(rows), longest, rows[0][0].shape[1])
        mask = torch.zeros(len(rows), longest, dtype=torch.bool)
        for row, (values, _) in enumerate(rows):
            elements[row, : len(values)] = torch.from_numpy(values).float()
            mask[row, : len(values)] = True
        return {"elements": elements, "mask": mask, "target": torch.tensor([target for _, target in rows]).float()}

    def example(self, number: int, epoch: int) -> tuple[np.ndarray, float]:
        """The elements, and the target: the largest, or the log-likelihood of the points under their own mixture."""
        draw = draws(self.seed, epoch, number)
        size = int(draw.integers(self.sizes[0], self.sizes[1] + 1))
        if self.problem == "maximum":
            values = draw.uniform(0, HIGHEST, size=(size, 1))
            return values, float(values.max())
        weights = draw.dirichlet(np.ones(self.clusters))
        centres = draw.uniform(-REACH, REACH, size=(self.clusters, 2))
        points = centres[draw.choice(self.clusters, size=size, p=weights)] + DEVIATION * draw.normal(size=(size, 2))
        squares = ((points[:, None] - centres) ** 2).sum(-1) / DEVIATION**2
        logs = np.log(weights + 1e-12) - squares / 2 - 2 * math.log(DEVIATION) - math.log(2 * math.pi)
        return points, float(np.logaddexp.reduce(logs, axis=1).mean())

    def fingerprint(self) -> str:
        return f"{self.problem} of {self.sizes}, {self.clusters} clusters, {self.examples} examples by seed {self.seed}"


@dataclass
class SetMetrics(Metrics):
    """The mean error; of clusters, the log-likelihood, and that of the true mixture."""

    problem: str = "maximum"
    loss: float = 0.0
    other: float = 0.0
    count: int = 0

    def add(self, other: Metrics) -> None:
        assert isinstance(other, SetMetrics)
        self.loss, self.other, self.count = self.loss + other.loss, self.other + other.other, self.count + other.count

    def result(self) -> dict[str, float]:
        count = max(self.count, 1)
        if self.problem == "maximum":
            return {"loss": self.loss / count, "error": self.other / count}
        return {
            "loss": self.loss / count,
            "log_likelihood": -self.loss / count,
            "log_likelihood_of_the_truth": self.other / count,
        }


class SetObjective(Objective):
    """The squared error of the maximum, or the negative log-likelihood of the points, a mean over each set."""

    unit = "sets"

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def count(self, batch: Batch) -> int:
        return len(batch["target"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        return TaskLoss(self._losses(model, batch)[0].sum(), {})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[SetMetrics, Any]:
        losses, errors = self._losses(model, batch)
        return SetMetrics(self.problem, losses.sum().item(), errors.sum().item(), len(losses)), None

    def _losses(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of each set, and its absolute error, or the log-likelihood under the true mixture."""
        reader = SetModel.require(model, SetTask.name)
        elements, target = batch["elements"], batch["target"]
        if self.problem == "maximum":
            out = reader(elements / HIGHEST, key_mask=batch["mask"])[:, 0, 0]
            error = out - target / HIGHEST
            return error**2, HIGHEST * error.abs()
        out = reader(elements, key_mask=batch["mask"])
        return -mixture_log_likelihood(out, elements, batch["mask"]), target


def mixture_log_likelihood(out: Tensor, points: Tensor, mask: Tensor) -> Tensor:
    """The mean log-likelihood of each set's points; a row of `out` is a logit, two means and two deviations."""
    logits, means, deviations = out.split([1, 2, 2], -1)
    scales = softplus(deviations) + 1e-3
    scaled = (points[:, :, None] - means[:, None]) / scales[:, None]
    logs = -0.5 * (scaled**2).sum(-1) - scales.log().sum(-1)[:, None] - math.log(2 * math.pi)
    total = torch.logsumexp(logs + logits[..., 0].log_softmax(-1)[:, None], -1)
    return (total * mask).sum(1) / mask.sum(1)


class SetTask(Task):
    """Problems about sets of numbers, drawn without end."""

    name = "sets"
    reads_text = False
    starting_model = starting.SETS
    starting_train = starting.UNLABELLED

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        problem: str = option("maximum", "what is asked of a set", choices=PROBLEMS)
        smallest: int = option(1, "fewest elements of a set", low=1)
        largest: int = option(10, "most elements of a set", low=1)
        clusters: int = option(4, "clusters: the number of them", low=1)
        examples: int = option(10_000, "sets of an epoch", low=1)
        held_out_examples: int = option(1000, "sets to evaluate on", low=1)
        batch: int = option(32, "sets per batch", low=1)

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        if options.largest < options.smallest:
            raise InvalidOption(f"largest must be at least smallest, {options.smallest}, not {options.largest}")
        clusters = options.problem == "clusters"

        def data(examples: int, seed: int, *, fixed: bool) -> SetData:
            return SetData(
                options.problem,
                smallest=options.smallest,
                largest=options.largest,
                clusters=options.clusters,
                examples=examples,
                batch=options.batch,
                seed=seed,
                fixed=fixed,
            )

        return Prepared(
            data(options.examples, folders.seed, fixed=False),
            data(options.held_out_examples, folders.seed + 1_000_003, fixed=True),
            SetObjective(options.problem),
            needs={
                "features": 2 if clusters else 1,
                "seeds": options.clusters if clusters else 1,
                "outputs": 5 if clusters else 1,
            },
            facts={"sets of an epoch": options.examples, "held-out sets": options.held_out_examples},
        )


__all__ = ["SetData", "SetMetrics", "SetObjective", "SetTask", "mixture_log_likelihood"]
