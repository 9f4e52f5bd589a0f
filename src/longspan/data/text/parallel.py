"""Parallel text: sentence pairs from two files, line by line, or from one file with two columns."""

import hashlib
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch

from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled
from longspan.data.text import text_files
from longspan.data.text.hub_datasets import is_hub_dataset
from longspan.data.text.tables import ENDINGS, ending, rows
from longspan.data.text.token_files import TokenFile
from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.loss import IGNORED

ENDS = ("", ".gz", ".bz2", ".xz")


def find_pair(name: str, source: str, target: str) -> tuple[Path, Path]:
    """The two files of a split, such as `name`.de and `name`.en, compressed or not; a table is both."""
    if ending(Path(name)) in ENDINGS or is_hub_dataset(name):
        return Path(name), Path(name)
    return _find(name, source), _find(name, target)


def _find(name: str, language: str) -> Path:
    paths = [Path(f"{name}.{language}{end}") for end in ENDS]
    for path in paths:
        if path.is_file():
            return path
    raise InvalidInput(
        f"there is no file {paths[0]}, compressed or not; give NAME of two files NAME.LANGUAGE, "
        "or a table (.tsv, .csv, .jsonl)"
    )


def read_pairs(
    source: Path, target: Path, columns: tuple[str, str] = ("en", "de"), encoding: str | None = None
) -> tuple[list[str], list[str]]:
    """The sentences of two files with equally many lines or, if both are the same file, of two of its columns.

    A .tsv file has two columns, which need no names; in other tables, and in a .tsv whose first line names them, they
    are `columns`.
    """
    with text_files.hinting():
        if source != target:
            firsts, seconds = _lines(source, target, encoding)
        elif ending(source) in (".tsv", ".tab") and not _named(source, columns, encoding):
            firsts, seconds = _columns(source, encoding)
        else:
            firsts, seconds = _rows(source, columns, encoding)
    if not firsts:
        raise InvalidInput(f"{source} is empty")
    return firsts, seconds


def _named(path: Path, columns: tuple[str, str], encoding: str | None) -> bool:
    first = next(text_files.lines(path, encoding), "")
    return set(columns) <= {name.strip() for name in first.split("\t")}


def _rows(path: Path, columns: tuple[str, str], encoding: str | None) -> tuple[list[str], list[str]]:
    found: tuple[list[str], list[str]] = ([], [])
    for row in rows(path, columns, encoding=encoding):
        for name, side in zip(columns, found):
            if not row.fields[name].strip():
                raise InvalidInput(f"{row.where}: {name} is empty; a pair needs both sentences")
            side.append(" ".join(row.fields[name].split()))
    return found


def _lines(source: Path, target: Path, encoding: str | None) -> tuple[list[str], list[str]]:
    found: tuple[list[str], list[str]] = ([], [])
    both = text_files.lines(source, encoding), text_files.lines(target, encoding)
    for number, pair in enumerate(zip_longest(*both), start=1):
        if None in pair:
            longer, shorter = (target, source) if pair[0] is None else (source, target)
            count = sum(1 for _ in text_files.lines(longer, encoding))
            raise InvalidInput(
                f"{shorter} ends with line {number - 1}, and {longer} has {count}: line by line they must be pairs"
            )
        for path, line, side in zip((source, target), pair, found):
            if not line.strip():
                raise InvalidInput(f"{path}, line {number}: it is empty; a pair needs both sentences")
            side.append(line.strip())
    return found


def _columns(path: Path, encoding: str | None) -> tuple[list[str], list[str]]:
    found: tuple[list[str], list[str]] = ([], [])
    for number, line in enumerate(text_files.lines(path, encoding), start=1):
        parts = line.split("\t")
        if len(parts) != 2:
            raise InvalidInput(f"{path}, line {number}: expected two columns with a tab between, got {len(parts)}")
        for part, side in zip(parts, found):
            if not part.strip():
                raise InvalidInput(f"{path}, line {number}: a column is empty; a pair needs both sentences")
            side.append(part.strip())
    return found


class Parallel(Data):
    """Sentence pairs as ids; the number of an example is its line number minus one.

    A batch has sentences of similar lengths: `batch` pairs, or as many as keep both sides within `max_tokens` with
    padding. Ties between equal lengths, and the order of batches, are random in each epoch. Targets start with `begin`
    and end with `end`.

    Pairs with a side of more than `longest` tokens are dropped. `references` are the target texts, for comparing
    translations; `name` names the file in errors.
    """

    def __init__(
        self,
        source: TokenFile,
        target: TokenFile,
        *,
        begin: int,
        end: int,
        padding: int = 0,
        batch: int | None = None,
        max_tokens: int | None = None,
        longest: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        references: Sequence[str] = (),
        name: str = "the pairs",
    ) -> None:
        if (batch is None) == (max_tokens is None):
            raise InvalidOption("give the size of a batch by pairs or by max_tokens: one of the two")
        self.source, self.target, self.references = source, target, references
        self.begin, self.end, self.padding = begin, end, padding
        self.batch, self.max_tokens, self.seed, self.shuffle = batch, max_tokens, seed, shuffle
        self.lengths = self._lengths()
        largest = self.lengths.max(0)
        self.kept = np.flatnonzero(largest <= longest) if longest is not None else np.arange(len(largest))
        if not len(self.kept):
            raise InvalidInput(f"{name}: every pair has more than {longest} tokens, and longer ones are left out")
        worst = self.kept[largest[self.kept].argmax()]
        if max_tokens is not None and largest[worst] > max_tokens:
            raise InvalidInput(
                f"{name}, line {worst + 1}: it has {largest[worst]} tokens, and a batch {max_tokens}; "
                "give more to a batch (max_tokens), or leave out long pairs (longest)"
            )

    def _lengths(self) -> np.ndarray:
        """The tokens of each side, (2, pairs); the target's with its end."""
        ends = [np.append(file.borders, len(file)) for file in (self.source, self.target)]
        return np.stack([np.diff(ends[0]), np.diff(ends[1]) + 1])

    def __len__(self) -> int:
        return len(self.kept)

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        order = self.kept[np.asarray(Shuffled(len(self.kept), self.seed, epoch)[:])] if self.shuffle else self.kept
        firsts, seconds = self.lengths[:, order]
        # Sort by the longer side, then by how much longer it is, up and down in turns, so that a batch of two lengths
        # is even as well.
        longer, more = np.maximum(firsts, seconds), firsts - seconds
        order = order[np.lexsort((np.where(longer % 2, -more, more), longer))]
        batches = self._cut(order)
        return [batches[index] for index in Shuffled(len(batches), self.seed, epoch)] if self.shuffle else batches

    def _cut(self, order: np.ndarray) -> list[list[int]]:
        if self.batch is not None:
            return [order[at : at + self.batch].tolist() for at in range(0, len(order), self.batch)]
        assert self.max_tokens is not None
        largest = self.lengths.max(0)[order].tolist()
        found: list[list[int]] = [[]]
        widest = 0
        for number, length in zip(order.tolist(), largest):
            widest = max(widest, length)
            if widest * (len(found[-1]) + 1) > self.max_tokens:
                found.append([])
                widest = length
            found[-1].append(number)
        return found

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        """`source` and `ids` (what the decoder reads), `targets` (-100: padding), `source_mask`, and the numbers."""
        sources = [self._sentence(self.source, number) for number in numbers]
        targets = [self._sentence(self.target, number) for number in numbers]
        begun = [np.insert(target, 0, self.begin) for target in targets]
        ended = [np.append(target, self.end) for target in targets]
        source = side_by_side(sources, self.padding)
        lengths = torch.tensor([len(each) for each in sources])
        return {
            "source": source,
            "source_mask": torch.arange(source.shape[1]) < lengths[:, None],
            "ids": side_by_side(begun, self.padding),
            "targets": side_by_side(ended, IGNORED),
            "number": torch.tensor(list(numbers)),
        }

    def sentence(self, number: int) -> list[int]:
        """The ids of a source sentence."""
        return [int(token) for token in self._sentence(self.source, number)]

    def _sentence(self, file: TokenFile, number: int) -> np.ndarray:
        stop = file.borders[number + 1] if number + 1 < len(file.borders) else len(file)
        return np.asarray(file[file.borders[number] : stop], dtype=np.int64)

    def padded(self) -> float:
        """The share of padding in the batches of an epoch, over both sides."""
        real = full = 0
        for numbers in self.batches(0):
            own = self.lengths[:, numbers]
            real, full = real + int(own.sum()), full + int(own.max(1).sum()) * len(numbers)
        return 1 - real / full

    def fingerprint(self) -> str:
        size = f"{self.batch} pairs" if self.batch is not None else f"{self.max_tokens} tokens"
        order = f"shuffled by {self.seed}" if self.shuffle else "in order"
        kept = hashlib.sha256(self.kept.tobytes()).hexdigest()[:8]
        return f"{self.source.sha256[:16]} and {self.target.sha256[:16]} ({kept}), batches of {size}, {order}"


def side_by_side(rows: Sequence[np.ndarray], value: int) -> torch.Tensor:
    """Rows as one tensor, padded on the right."""
    found = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for row, ids in enumerate(rows):
        found[row, : len(ids)] = ids
    return torch.from_numpy(found)


__all__ = ["Parallel", "find_pair", "read_pairs", "side_by_side"]
