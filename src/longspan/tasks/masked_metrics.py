"""The metrics of masked tokens and of sentence pairs, as sums."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.tasks.base import Metrics


@dataclass
class MaskedMetrics(Metrics):
    """Loss, perplexity and accuracy of masked tokens, and of pairs."""

    nats: float = 0.0
    right: int = 0
    places: int = 0
    pair_nats: float = 0.0
    pair_right: int = 0
    pairs: int = 0

    def add(self, other: Metrics) -> None:
        assert isinstance(other, MaskedMetrics)
        self.nats, self.right, self.places = (
            self.nats + other.nats,
            self.right + other.right,
            self.places + other.places,
        )
        self.pair_nats, self.pair_right = self.pair_nats + other.pair_nats, self.pair_right + other.pair_right
        self.pairs += other.pairs

    def result(self) -> dict[str, float]:
        masked = self.nats / max(self.places, 1)
        metrics = {
            "loss": masked,
            "masked_loss": masked,
            "masked_perplexity": math.exp(min(masked, 700.0)),
            "masked_accuracy": self.right / max(self.places, 1),
        }
        if self.pairs:
            metrics["pair_loss"] = self.pair_nats / self.pairs
            metrics["pair_accuracy"] = self.pair_right / self.pairs
            metrics["loss"] += metrics["pair_loss"]
        return metrics


def wide(logits: Tensor) -> Tensor:
    """Logits in float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


__all__ = ["MaskedMetrics", "wide"]
