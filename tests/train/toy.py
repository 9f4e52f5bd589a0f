"""A small thing to train: a language model on a text of counted numbers, with dropout, so that randomness matters."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled, draws
from longspan.models import build
from longspan.models.base import Model
from longspan.tasks.base import Metrics, Objective, TaskLoss
from longspan.train.loop import Trainer
from longspan.train.options import TrainOptions
from longspan.train.processes import Processes
from longspan.train.run import Run
from longspan.train.schedule import Schedule

VOCABULARY = 11


class Counting(Data):
    """Rows that count on from a drawn start, of different lengths, padded with -100."""

    def __init__(self, examples: int = 24, batch: int = 5, seed: int = 0) -> None:
        self.examples, self.batch, self.seed = examples, batch, seed

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        order = Shuffled(self.examples, self.seed, epoch)
        return [order[start : start + self.batch] for start in range(0, self.examples, self.batch)]

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        rows = []
        for number in numbers:
            start = int(draws(self.seed, epoch, number).integers(VOCABULARY))
            row = (start + torch.arange(8)) % VOCABULARY
            row[3 + number % 5 :] = -100
            rows.append(row)
        targets = torch.stack(rows)
        return {"ids": torch.where(targets < 0, 0, targets)[:, :-1], "targets": targets[:, 1:]}

    def fingerprint(self) -> str:
        return f"{self.examples} examples, batches of {self.batch}, seed {self.seed}"


class Mean(Metrics):
    def __init__(self, total: float, count: int) -> None:
        self.total, self.count = total, count

    def add(self, other: Metrics) -> None:
        assert isinstance(other, Mean)
        self.total, self.count = self.total + other.total, self.count + other.count

    def tensors(self) -> Tensor:
        return torch.tensor([self.total, self.count], dtype=torch.float64)

    def result(self) -> dict[str, float]:
        return {"loss": self.total / self.count}


class NextToken(Objective):
    def count(self, batch: Batch) -> int:
        return int((batch["targets"] >= 0).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits = model(batch["ids"])
        total = cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=-100, reduction="sum")
        return TaskLoss(total, {})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        return Mean(float(self.loss(model, batch).total), self.count(batch)), None


def trainer(folder: Path, processes: Processes | None = None, dropout: float = 0.1, **options: Any) -> Trainer:
    torch.manual_seed(0)
    model = build("decoder", vocabulary=VOCABULARY, width=16, layers=2, heads=2, hidden=32, dropout=dropout)
    given = {"steps": 12, "schedule": Schedule(rate=1e-2, warmup=2), **options}
    made = TrainOptions(**given)
    return Trainer(Run(folder), model, Counting(), NextToken(), made, held_out=Counting(seed=1), processes=processes)
