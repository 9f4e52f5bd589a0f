"""The data of every arena task: labelled sequences of small integers, and batches of them."""

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

NO_LABEL = -100  # at tokens that are not asked for; cross-entropy leaves it out


@dataclass(frozen=True)
class LabelledSequences:
    """Concatenated sequences with a label each; if `texts` is 2, a label belongs to two consecutive sequences.

    If `per_token` is true, every token has a label of its own, or `NO_LABEL`.
    """

    tokens: np.ndarray  # uint8 or uint16, of all sequences; if lengths differ, 0 is padding and occurs in none
    starts: np.ndarray  # int64 (sequences + 1,): where each begins, and where the last ends
    labels: np.ndarray  # int64 (labels,), or (tokens,) if per_token
    source: str  # named in errors
    texts: int = 1  # sequences per label
    per_token: bool = False

    def __post_init__(self) -> None:
        if self.per_token:
            if self.texts != 1 or len(self.labels) != len(self.tokens):
                raise InvalidInput(
                    f"{self.source} has {len(self.labels)} labels for {len(self.tokens)} tokens of single texts: "
                    "expected one for each"
                )
        elif len(self.starts) - 1 != len(self.labels) * self.texts:
            raise InvalidInput(
                f"{self.source} has {len(self.starts) - 1} sequences, and {len(self.labels)} labels of {self.texts}"
            )

    def __len__(self) -> int:
        return (len(self.starts) - 1) // self.texts

    def sequence(self, number: int, text: int = 0) -> np.ndarray:
        """One of the sequences of a label."""
        index = number * self.texts + text
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def select(self, numbers: Sequence[int] | np.ndarray) -> "LabelledSequences":
        """The examples of these numbers, in this order."""
        sequences = [self.sequence(int(number), text) for number in numbers for text in range(self.texts)]
        starts = np.concatenate([[0], np.cumsum([len(sequence) for sequence in sequences])]).astype(np.int64)
        tokens = np.concatenate(sequences) if sequences else self.tokens[:0]
        if self.per_token:
            labels = np.concatenate([self.labels[:0], *(self.token_labels(int(number)) for number in numbers)])
        else:
            labels = self.labels[np.asarray(numbers, dtype=np.int64)]
        return LabelledSequences(tokens, starts, labels, self.source, self.texts, self.per_token)

    def token_labels(self, number: int) -> np.ndarray:
        """The labels of a sequence's tokens, if each has its own."""
        return self.labels[self.starts[number] : self.starts[number + 1]]

    @property
    def asked(self) -> np.ndarray:
        """All labels, without the tokens that are not asked for."""
        return self.labels[self.labels != NO_LABEL] if self.per_token else self.labels

    def digest(self) -> str:
        """A short hash of the tokens, lengths and labels."""
        sha256 = hashlib.sha256()
        for array in (self.tokens, self.starts, self.labels):
            sha256.update(str(array.dtype).encode())
            sha256.update(np.ascontiguousarray(array).data)  # no copy: Path-X has gigabytes
        return sha256.hexdigest()[:16]


@dataclass(frozen=True)
class Splits:
    """The data of a task: `train`, `held_out` to select the best step, and `test` for the result."""

    train: LabelledSequences
    held_out: LabelledSequences
    test: LabelledSequences
    vocabulary: int  # ids 0 … vocabulary − 1
    classes: int
    length: int  # of the longest sequence that the model must hold
    padded: bool  # whether lengths differ; 0 is then padding
    grid: tuple[int, int] | None = None  # height and width, if sequences are images
    notes: Mapping[str, Any] = field(default_factory=dict)  # source, label shares, hashes, stand-ins


class SequenceData(Data):
    """Batches with `ids`, `label` and, if lengths differ, `key_mask`; for two texts also `other_ids`, `other_mask`.

    `label` is (batch,), or (batch, length) if every token has its own. `groups`, a number for each token of the
    examples, is in the batches as `group`.
    """

    def __init__(
        self,
        examples: LabelledSequences,
        batch: int,
        *,
        length: int,
        padded: bool,
        seed: int = 0,
        shuffle: bool = True,
        groups: np.ndarray | None = None,
    ) -> None:
        self.examples, self.batch, self.length, self.padded = examples, batch, length, padded
        self.seed, self.shuffle, self.groups = seed, shuffle, groups

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        count = len(self.examples)
        return Batches(Shuffled(count, self.seed, epoch) if self.shuffle else range(count), self.batch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        names = [("ids", "key_mask"), ("other_ids", "other_mask")]
        batch = self._labels(numbers)
        for text in range(self.examples.texts):
            sequences = [self.examples.sequence(number, text)[: self.length] for number in numbers]
            ids = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int64)
            mask = np.zeros(ids.shape, dtype=bool)
            for row, sequence in enumerate(sequences):
                ids[row, : len(sequence)], mask[row, : len(sequence)] = sequence, True
            name, mask_name = names[text]
            batch[name] = torch.from_numpy(ids)
            if self.padded:
                batch[mask_name] = torch.from_numpy(mask)
        return batch

    def _labels(self, numbers: Sequence[int]) -> dict[str, torch.Tensor]:
        examples = self.examples
        if not examples.per_token:
            return {"label": torch.from_numpy(examples.labels[np.asarray(numbers, dtype=np.int64)])}
        spans = [slice(*examples.starts[number : number + 2]) for number in numbers]
        most = max(min(span.stop - span.start, self.length) for span in spans)
        of_tokens = {"label": examples.labels} | ({} if self.groups is None else {"group": self.groups})
        batch = dict[str, torch.Tensor]()
        for name, values in of_tokens.items():
            rows = np.full((len(spans), most), NO_LABEL, dtype=np.int64)
            for row, span in enumerate(spans):
                cut = values[span][: self.length]
                rows[row, : len(cut)] = cut
            batch[name] = torch.from_numpy(rows)
        return batch

    def fingerprint(self) -> str:
        return f"{self.examples.digest()} batch {self.batch} length {self.length} seed {self.seed}"


__all__ = ["NO_LABEL", "LabelledSequences", "SequenceData", "Splits"]
