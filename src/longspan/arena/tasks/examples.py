"""What every task of the arena is made of: sequences of small numbers with a label, and batches of them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled
from longspan.data.text.blocks import Batches
from longspan.errors import InvalidInput


@dataclass(frozen=True)
class LabelledSequences:
    """Sequences one after the other, and a label for each; where `texts` is 2, each label is of two that follow."""

    tokens: np.ndarray  # uint8 or uint16, of all sequences; where they differ in length, 0 is padding and in none
    starts: np.ndarray  # int64 (sequences + 1,): where each begins, and where the last ends
    labels: np.ndarray  # int64 (labels,)
    source: str  # named in errors
    texts: int = 1  # sequences of one label

    def __post_init__(self) -> None:
        if len(self.starts) - 1 != len(self.labels) * self.texts:
            raise InvalidInput(
                f"{self.source} has {len(self.starts) - 1} sequences, and {len(self.labels)} labels of {self.texts}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def sequence(self, number: int, text: int = 0) -> np.ndarray:
        """One of the sequences of a label."""
        place = number * self.texts + text
        return self.tokens[self.starts[place] : self.starts[place + 1]]

    def some(self, numbers: Sequence[int] | np.ndarray) -> "LabelledSequences":
        """These, in this order."""
        parts = [self.sequence(int(number), text) for number in numbers for text in range(self.texts)]
        starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        tokens = np.concatenate(parts) if parts else self.tokens[:0]
        return LabelledSequences(
            tokens, starts, self.labels[np.asarray(numbers, dtype=np.int64)], self.source, self.texts
        )

    def digest(self) -> str:
        """A short hash of all of it."""
        found = hashlib.sha256()
        for part in (self.tokens, self.starts, self.labels):
            found.update(str(part.dtype).encode())
            found.update(np.ascontiguousarray(part).data)  # no copy: Path-X has gigabytes
        return found.hexdigest()[:16]


@dataclass(frozen=True)
class Splits:
    """A task that is ready: what is learned from, what the best step is chosen by, and what is reported."""

    train: LabelledSequences
    held_out: LabelledSequences
    test: LabelledSequences
    vocabulary: int  # ids 0 … vocabulary − 1
    classes: int
    length: int  # of the longest sequence that the model must hold
    padded: bool  # whether lengths differ, and 0 is padding
    grid: tuple[int, int] | None = None  # height and width, where sequences are images
    notes: Mapping[str, Any] = field(default_factory=dict)  # where it is from, label shares, hashes, stand-ins


class SequenceData(Data):
    """Batches `ids`, `label`, and where lengths differ `key_mask`; of two texts also `other_ids` and `other_mask`."""

    def __init__(
        self, examples: LabelledSequences, batch: int, *, length: int, padded: bool, seed: int = 0, shuffle: bool = True
    ) -> None:
        self.examples, self.batch, self.length, self.padded = examples, batch, length, padded
        self.seed, self.shuffle = seed, shuffle

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        count = len(self.examples)
        return Batches(Shuffled(count, self.seed, epoch) if self.shuffle else range(count), self.batch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        names = [("ids", "key_mask"), ("other_ids", "other_mask")]
        found = {"label": torch.from_numpy(self.examples.labels[np.asarray(numbers, dtype=np.int64)])}
        for text in range(self.examples.texts):
            parts = [self.examples.sequence(number, text)[: self.length] for number in numbers]
            ids = np.zeros((len(parts), max(map(len, parts))), dtype=np.int64)
            mask = np.zeros(ids.shape, dtype=bool)
            for row, part in enumerate(parts):
                ids[row, : len(part)], mask[row, : len(part)] = part, True
            name, masked = names[text]
            found[name] = torch.from_numpy(ids)
            if self.padded:
                found[masked] = torch.from_numpy(mask)
        return found

    def fingerprint(self) -> str:
        return f"{self.examples.digest()} batch {self.batch} length {self.length} seed {self.seed}"


__all__ = ["LabelledSequences", "SequenceData", "Splits"]
