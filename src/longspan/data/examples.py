"""Texts of different lengths as examples, in batches of nearly equal ones, so that little of a batch is padding."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled, draws
from longspan.errors import InvalidInput

POOL = 50  # batches that are sorted by length together: enough for little padding, few enough for a random order
FILLED = {"targets": -100, "segments": 0}  # what stands behind the end, by field; -1 unless said


@dataclass(frozen=True)
class Example:
    """One text: its tokens, numbers for the whole of it, and lists with a number for each token."""

    ids: Sequence[int]
    segments: Sequence[int]
    whole: Mapping[str, float] = field(default_factory=dict)
    each: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


class Examples(Data):
    """Batches `ids`, `mask` (True: real), `segments`, and the fields of the examples.

    An epoch is shuffled, sorted by length within pools of some batches, cut, and the batches shuffled again; without
    `shuffle` all is sorted, and cut.
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
        found: list[list[int]] = []
        for start in range(0, count, pool):
            part = order[start : start + pool]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            found.extend(part[at : at + size].tolist() for at in range(0, len(part), size))
        if self.shuffle:
            found = [found[place] for place in draws(self.seed, epoch, 0xFFFFFFFF).permutation(len(found))]
        return found

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        chosen = [self.examples[number] for number in numbers]
        found = {
            "ids": _filled([each.ids for each in chosen], self.padding),
            "mask": _filled([[1] * len(each) for each in chosen], 0).bool(),
            "segments": _filled([each.segments for each in chosen], 0),
        }
        for name in chosen[0].each:
            found[name] = _filled([each.each[name] for each in chosen], FILLED.get(name, -1))
        for name in chosen[0].whole:
            found[name] = torch.tensor([each.whole[name] for each in chosen])
        return found

    def waste(self) -> float:
        """The share of padding in all batches of an epoch."""
        whole = sum(len(batch) * int(self.lengths[list(batch)].max()) for batch in self.batches(0))
        return float(1 - self.lengths.sum() / max(1, whole))

    def fingerprint(self) -> str:
        seen = hashlib.sha256()
        for example in self.examples:
            seen.update(np.array(example.ids, dtype=np.int64).tobytes())
            seen.update(repr(sorted(example.whole.items())).encode())
            for name, numbers in sorted(example.each.items()):
                seen.update(name.encode() + np.array(numbers, dtype=np.int64).tobytes())
        order = f"shuffled by {self.seed}" if self.shuffle else "in order"
        return f"{len(self.examples)} examples {seen.hexdigest()[:16]}, batches of {self.batch}, {order}"


def _filled(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    found = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return torch.from_numpy(found)


__all__ = ["Example", "Examples"]
