"""Batches of a token file for language models: shuffled blocks, or parallel streams."""

from collections.abc import Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled, draws
from longspan.data.text.token_files import Tokens
from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.loss import IGNORED


class Batches(Sequence[Sequence[int]]):
    """An order cut into batches, without holding them in memory."""

    def __init__(self, order: Sequence[int], size: int) -> None:
        self.order, self.size = order, size

    def __len__(self) -> int:
        return -(-len(self.order) // self.size)

    @overload
    def __getitem__(self, index: int) -> Sequence[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sequence[int]]: ...
    def __getitem__(self, index: int | slice) -> Sequence[int] | list[Sequence[int]]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        start = index % len(self) * self.size
        return self.order[start : start + self.size]


class TokenBlocks(Data):
    """Blocks of `length` ids and the ids that follow each, every id once an epoch.

    The start of the first block is random in each epoch, so that ids change their positions. With `separate`, batches
    have `documents`, the document of each id, and targets across a document border are ignored.

    With `stride` (not shuffled), blocks start every `stride` ids and overlap. Each target counts once, in the first
    block that has it, so it is predicted from at least `length - stride` ids before it (but for the first block).
    """

    def __init__(
        self,
        tokens: Tokens,
        length: int,
        batch: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        separate: bool = False,
        stride: int | None = None,
    ) -> None:
        if len(tokens) < 2:
            raise InvalidInput(f"{tokens.path} holds {len(tokens)} ids; a language model needs two at least")
        if stride is not None and (shuffle or not 1 <= stride <= length):
            raise InvalidOption(f"stride must be 1 to the length of {length}, of blocks in order, not {stride}")
        self.tokens, self.length, self.batch = tokens, min(length, len(tokens) - 1), batch
        self.seed, self.shuffle, self.separate = seed, shuffle, separate
        self.stride = self.length if stride is None else min(stride, self.length)

    def _shift(self, epoch: int) -> int:
        return int(draws(self.seed, epoch, -1 & 0xFFFFFFFF).integers(self.length)) if self.shuffle else 0

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        places = len(self.tokens) - 1
        if not self.shuffle:
            return Batches(range(1 + -(-(places - self.length) // self.stride)), self.batch)
        count = max(1, (places - self._shift(epoch)) // self.length)
        return Batches(Shuffled(count, self.seed, epoch), self.batch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        shift, last = self._shift(epoch), len(self.tokens) - 1
        ids = np.zeros((len(numbers), self.length), dtype=np.int64)
        targets = np.full((len(numbers), self.length), IGNORED, dtype=np.int64)
        documents = np.full((len(numbers), self.length), -1, dtype=np.int64)
        for row, number in enumerate(numbers):
            start = min(shift + number * self.stride, last - 1)
            stop = min(start + self.length, last)
            ids[row, : stop - start] = self.tokens[start:stop]
            targets[row, : stop - start] = self.tokens[start + 1 : stop + 1]
            if self.separate:
                document = self.tokens.document_of(start, stop + 1)
                documents[row, : stop - start] = document[:-1]
                targets[row, : stop - start][document[1:] != document[:-1]] = IGNORED
            if number:
                targets[row, : self.length - self.stride] = IGNORED  # they count in the block before
        batch = {"ids": torch.from_numpy(ids), "targets": torch.from_numpy(targets)}
        if self.separate:
            batch["documents"] = torch.from_numpy(documents)
        return batch

    def fingerprint(self) -> str:
        order = f"shuffled by {self.seed}" if self.shuffle else "in order"
        stride = f", stride {self.stride}" if self.stride != self.length else ""
        apart = ", documents apart" if self.separate else ""
        return f"{self.tokens.sha256[:16]}, blocks of {self.length}, batches of {self.batch}, {order}{stride}{apart}"


def unpack(batch: Batch) -> dict[str, Tensor]:
    """A batch with `documents` as one row per document and block, padded at the end: `ids`, `targets`, `key_mask`.

    A model that reads these rows cannot read across a border, and its positions begin at each document.
    """
    documents = batch["documents"]
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    real = documents >= 0
    rows = (begins & real).flatten().cumsum(0).view_as(documents)[real] - 1
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    places = (index - torch.where(begins, index, 0).cummax(1).values)[real]
    shape = int(rows.max()) + 1, int(places.max()) + 1
    unpacked = {
        "ids": batch["ids"].new_zeros(shape),
        "targets": batch["targets"].new_full(shape, IGNORED),
        "key_mask": torch.zeros(shape, dtype=torch.bool, device=documents.device),
    }
    for name, value in (("ids", batch["ids"][real]), ("targets", batch["targets"][real])):
        unpacked[name][rows, places] = value
    unpacked["key_mask"][rows, places] = True
    return unpacked


class Streams(Data):
    """`rows` parallel streams, each a contiguous part of the file, read block by block.

    Row r of a batch continues row r of the batch before, as models with a memory need it. Ids that do not fill all
    rows are dropped.
    """

    def __init__(self, tokens: Tokens, length: int, rows: int) -> None:
        self.tokens, self.length, self.rows = tokens, length, rows
        self.each = (len(tokens) - 1) // rows  # ids of a row
        if self.each < 1:
            raise InvalidInput(f"{tokens.path} holds {len(tokens)} ids, too few for {rows} streams")

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        return Batches(range(self.rows * -(-self.each // self.length)), self.rows)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        ids, targets = [], []
        for number in numbers:
            block, row = divmod(number, self.rows)
            start = row * self.each + block * self.length
            stop = min(start + self.length, (row + 1) * self.each)
            ids.append(self.tokens[start:stop])
            targets.append(self.tokens[start + 1 : stop + 1])
        found = {"ids": np.stack(ids), "targets": np.stack(targets)}
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in found.items()}

    def fingerprint(self) -> str:
        return f"{self.tokens.sha256[:16]}, {self.rows} streams in blocks of {self.length}"


__all__ = ["Batches", "Streams", "TokenBlocks", "unpack"]
