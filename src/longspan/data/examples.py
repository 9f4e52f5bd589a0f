"""Texts of different lengths, in batches of similar lengths, so that little of a batch is padding."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled, draws
from longspan.errors import InvalidInput

POOL = 50  # batches sorted by length together: enough for little padding, few enough for a random order
PADDING = {"targets": -100, "segments": 0}  # padding values by field; others have -1


@dataclass(frozen=True)
class Example:
    """One text: its tokens, numbers for the whole text, and lists with a number for each token."""

    ids: Sequence[int]
    segments: Sequence[int]
    whole: Mapping[str, float] = field(default_factory=dict)
    each: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


class Examples(Data):
    """Batches `ids`, `mask` (True: real), `segments`, and the fields of the examples.

    An epoch is shuffled, sorted by length within pools of `POOL` batches, cut into batches, and these are shuffled.
    Without `shuffle` everything is sorted by length and cut.
    """

    def __init__(
        self, examples: Sequence[Example], batch: int, *, padding: int = 0, seed: int = 0, shuffle: bool = True
    ) -> None:
        if not examples:
            raise InvalidInput("there are no examples")
        self.examples, self.batch, self.padding = examples, batch, padding
        self.seed, self.shuffle = seed, shuffle
        self.lengths = np.array([self.length(example) for example in examples])

    @staticmethod
    def length(example: Example) -> int:
        return len(example)

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        count, size = len(self.examples), self.batch
        pool = size * POOL if self.shuffle else count
        order = np.arange(count)
        if self.shuffle:
            order = np.array(Shuffled(count, self.seed, epoch)[:])
        batches: list[list[int]] = []
        for start in range(0, count, pool):
            numbers = order[start : start + pool]
            numbers = numbers[np.argsort(self.lengths[numbers], kind="stable")]
            batches.extend(numbers[at : at + size].tolist() for at in range(0, len(numbers), size))
        if self.shuffle:
            batches = [batches[index] for index in draws(self.seed, epoch, 0xFFFFFFFF).permutation(len(batches))]
        return batches

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        chosen = [self.examples[number] for number in numbers]
        batch = {
            "ids": _padded([example.ids for example in chosen], self.padding),
            "mask": _padded([[1] * len(example) for example in chosen], 0).bool(),
            "segments": _padded([example.segments for example in chosen], 0),
        }
        for name in chosen[0].each:
            batch[name] = _padded([example.each[name] for example in chosen], PADDING.get(name, -1))
        for name in chosen[0].whole:
            batch[name] = torch.tensor([example.whole[name] for example in chosen])
        return batch

    def waste(self) -> float:
        """The share of padding in all batches of an epoch."""
        whole = sum(len(batch) * int(self.lengths[list(batch)].max()) for batch in self.batches(0))
        return float(1 - self.lengths.sum() / max(1, whole))

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for example in self.examples:
            digest.update(np.array(example.ids, dtype=np.int64).tobytes())
            digest.update(repr(sorted(example.whole.items())).encode())
            for name, numbers in sorted(example.each.items()):
                digest.update(name.encode() + np.array(numbers, dtype=np.int64).tobytes())
        order = f"shuffled by {self.seed}" if self.shuffle else "in order"
        return f"{len(self.examples)} examples {digest.hexdigest()[:16]}, batches of {self.batch}, {order}"


class Groups(Examples):
    """Examples of several texts each, such as choices or both orders of a pair; batches are (examples, texts, tokens).

    All groups have the same number of texts. Numbers for a whole example are those of its first text.
    """

    def __init__(
        self, groups: Sequence[Sequence[Example]], batch: int, *, padding: int = 0, seed: int = 0, shuffle: bool = True
    ) -> None:
        self.groups = groups
        longest = [max(group, key=len) for group in groups]
        super().__init__(longest, batch, padding=padding, seed=seed, shuffle=shuffle)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        chosen = [self.groups[number] for number in numbers]
        flat = Examples([text for group in chosen for text in group], 1, padding=self.padding, shuffle=False)
        rows = flat.load(range(len(flat.examples)), epoch)
        batch = {name: torch.unflatten(tensor, 0, (len(chosen), -1)) for name, tensor in rows.items()}
        return {name: batch[name][:, 0] if name in chosen[0][0].whole else batch[name] for name in batch}

    def fingerprint(self) -> str:
        flat = Examples([text for group in self.groups for text in group], self.batch, seed=self.seed)
        return f"groups of {flat.fingerprint()}"


def _padded(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    padded = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return torch.from_numpy(padded)


__all__ = ["Example", "Examples", "Groups"]
