"""Self pre-training (Amos, Berant & Gupta 2024): predict the task's own training inputs before its labels.

A share of the positions is hidden and predicted from the rest: tokens by their id, pixels by their value. Only the
training inputs are used. The weights below the head are then trained on the labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss, pad

from longspan.arena.models.arena_encoder import ArenaEncoder
from longspan.arena.tasks.examples import SequenceData
from longspan.data.base import Batch, Data
from longspan.data.order import draws
from longspan.models.base import Ids, Mask, Model
from longspan.nn.linear import Linear
from longspan.tasks.base import Metrics, Objective, TaskLoss

SHARES = {"listops": 0.10, "text": 0.15, "retrieval": 0.15, "image": 0.5, "pathfinder": 0.5, "pathx": 0.5}
SHARE = 0.15  # of tasks that the paper does not have
_HIDING = 0x5E1F  # a seed of its own, so that hiding does not depend on the order of examples


class HiddenRows(Data):
    """Batches `ids` with hidden positions, `original`, `hidden`, and where lengths differ `key_mask`.

    Two texts of a label are two rows.
    """

    def __init__(self, rows: SequenceData, share: float, mask: int) -> None:
        self.rows, self.share, self.mask = rows, share, mask

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        return self.rows.batches(epoch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        batch = self.rows.load(numbers, epoch)
        ids, real = batch["ids"], batch.get("key_mask")
        if "other_ids" in batch:
            ids, real = _stacked(ids, batch["other_ids"]), _both(real, batch.get("other_mask"), ids, batch["other_ids"])
        hidden = torch.zeros(ids.shape, dtype=torch.bool)
        lengths = [ids.shape[1]] * len(ids) if real is None else real.sum(1).tolist()
        for row, length in enumerate(lengths):
            number = int(numbers[row % len(numbers)]) * 2 + row // len(numbers)
            chosen = draws(self.rows.seed ^ _HIDING, epoch, number).permutation(length)
            hidden[row, torch.from_numpy(chosen[: max(1, round(self.share * length))])] = True
        hidden_batch = {"ids": ids.masked_fill(hidden, self.mask), "original": ids, "hidden": hidden}
        return hidden_batch if real is None else {**hidden_batch, "key_mask": real}

    def fingerprint(self) -> str:
        return f"{self.rows.fingerprint()}, {self.share:g} hidden"


def _stacked(one: Tensor, other: Tensor) -> Tensor:
    """Both one above the other, the shorter padded with 0 (or False) behind."""
    length = max(one.shape[1], other.shape[1])
    return torch.cat([pad(x, (0, length - x.shape[1])) for x in (one, other)])


def _both(one: Tensor | None, other: Tensor | None, ids: Tensor, other_ids: Tensor) -> Tensor | None:
    if one is None and other is None and ids.shape == other_ids.shape:
        return None
    first = torch.ones(ids.shape, dtype=torch.bool) if one is None else one
    return _stacked(first, torch.ones(other_ids.shape, dtype=torch.bool) if other is None else other)


class Guesser(Model):
    """An arena model and a layer that predicts hidden positions; the model's own head stays as it is."""

    name = "arena_guesser"
    paper = "Amos et al. 2024"

    def __init__(self, shell: ArenaEncoder, pixels: bool) -> None:
        super().__init__(shell.options)
        self.shell = shell
        self.out = Linear(shell.options.width, 1 if pixels else shell.options.vocabulary)

    def forward(self, ids: Ids, hidden: Mask, key_mask: Mask | None = None) -> Tensor:
        """One row for each hidden position."""
        states, _ = self.shell.states(ids, key_mask)
        predictions: Tensor = self.out(states[:, int(self.shell.cls) :][hidden])
        return predictions


@dataclass
class GuessMetrics(Metrics):
    total: float = 0.0
    right: int = 0
    count: int = 0

    def add(self, other: Metrics) -> None:
        assert isinstance(other, GuessMetrics)
        self.total, self.right, self.count = (
            self.total + other.total,
            self.right + other.right,
            self.count + other.count,
        )

    def result(self) -> dict[str, float]:
        count = max(self.count, 1)
        return {"loss": self.total / count, "accuracy": self.right / count}


class GuessObjective(Objective):
    """Cross-entropy of hidden tokens, or distance of the values (0 to 1) of hidden pixels."""

    def __init__(self, pixels: bool, vocabulary: int) -> None:
        self.pixels, self.vocabulary = pixels, vocabulary

    def count(self, batch: Batch) -> int:
        return int(batch["hidden"].sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        total, _ = self._read(model, batch)
        extra = model.auxiliary_loss()
        return TaskLoss(total if extra is None else total + extra * self.count(batch), {"guess": total.detach()})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        total, right = self._read(model, batch)
        return GuessMetrics(float(total), right, self.count(batch)), None

    def _read(self, model: Model, batch: Batch) -> tuple[Tensor, int]:
        predictions = model(batch["ids"], batch["hidden"], batch.get("key_mask"))
        targets = batch["original"][batch["hidden"]]
        if self.pixels:
            values = targets.to(predictions.dtype) / (self.vocabulary - 1)
            correct = (predictions[:, 0] - values).abs() < 0.5 / (self.vocabulary - 1)
            return l1_loss(predictions[:, 0], values, reduction="sum"), int(correct.sum())
        return cross_entropy(predictions.float(), targets, reduction="sum"), int(
            (predictions.argmax(-1) == targets).sum()
        )


def share_of(task: str) -> float:
    """The share of positions that are hidden."""
    return SHARES.get(task, SHARE)


__all__ = ["SHARE", "SHARES", "GuessObjective", "Guesser", "HiddenRows", "share_of"]
