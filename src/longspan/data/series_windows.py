"""Windows of a series: rows that follow each other in time, in a drawn order or one after the other."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled
from longspan.data.text.blocks import Batches


class SeriesWindows(Data):
    """A window of `length` rows from each of `starts`: `series`, and `known` if something is known of each time."""

    def __init__(
        self,
        values: np.ndarray,
        known: np.ndarray,
        starts: range,
        length: int,
        batch: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self.values, self.known = values, known
        self.starts, self.length, self.batch = starts, length, batch
        self.seed, self.shuffle = seed, shuffle

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        count = len(self.starts)
        return Batches(Shuffled(count, self.seed, epoch) if self.shuffle else range(count), self.batch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        rows = np.array([self.starts[number] for number in numbers])[:, None] + np.arange(self.length)
        batch = {"series": torch.from_numpy(self.values[rows]).float()}
        if self.known.shape[1]:
            batch["known"] = torch.from_numpy(self.known[rows]).float()
        return batch

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.values.tobytes() + self.known.tobytes()).hexdigest()[:16]
        order = f"shuffled by {self.seed}" if self.shuffle else "in order"
        return f"{digest}, {len(self.starts)} windows of {self.length}, batches of {self.batch}, {order}"


__all__ = ["SeriesWindows"]
