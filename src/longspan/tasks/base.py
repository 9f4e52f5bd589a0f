"""What is asked of a model in training: a loss over a batch, and figures over a whole set.

Losses are sums with the number of things they are over, never means: only so are micro-batches and processes with
different numbers of real tokens added up rightly.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from longspan.data.base import Batch
from longspan.models.base import Model


@dataclass(frozen=True)
class Loss:
    """The loss of a batch, summed; `parts` are further sums for the log, each over the same count."""

    total: Tensor
    parts: Mapping[str, Tensor]
    carried: Any = None  # what the model remembers for the next batch, where it does


class Figures(ABC):
    """Counts that add up over batches and processes, and the figures they make."""

    @abstractmethod
    def add(self, other: "Figures") -> None:
        """Takes in those of another batch or process."""

    @abstractmethod
    def result(self) -> dict[str, float]:
        """The figures, by name."""


class Objective(ABC):
    """An objective on a kind of batch."""

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """How many things the loss of a batch is over, such as real targets."""

    @abstractmethod
    def loss(self, model: Model, batch: Batch, carried: Any = None) -> Loss:
        """The loss of a batch; `carried` is what the last one left."""

    @abstractmethod
    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Figures, Any]:
        """The figures of a batch, in evaluation mode and without gradients; and what is carried on."""


__all__ = ["Figures", "Loss", "Objective"]
