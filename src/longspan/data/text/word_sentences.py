"""Sentences of words for a model that reads characters and predicts words (ELMo).

Words are split at spaces. Every distinct word has its characters; words outside the vocabulary are predicted as `<UNK>`
but read by their own characters.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from longspan.data.base import Batch
from longspan.data.examples import Example, Examples
from longspan.errors import InvalidInput
from longspan.models.classics.vocabulary import Vocabulary
from longspan.nn.characters import encode_words

BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"
MARKS = (END, BEGIN, UNKNOWN)  # first in the vocabulary: they are frequent, and sampling goes by rank


class WordTypes:
    """Every distinct word of the splits, numbered in the order of its first occurrence."""

    def __init__(self) -> None:
        self.numbers = {BEGIN: 0, END: 1}

    def number(self, words: Sequence[str]) -> np.ndarray:
        """The words of a sentence between its marks, as numbers."""
        numbers = self.numbers
        inner = [numbers.setdefault(word, len(numbers)) for word in words]
        return np.array([0, *inner, 1], dtype=np.int32)

    def characters(self, width: int) -> Tensor:
        """The characters of each word, (words, width)."""
        return encode_words([list(self.numbers)], characters=width)[0][0]

    def targets(self, vocabulary: Vocabulary) -> Tensor:
        """The id of each word in the vocabulary."""
        unknown = vocabulary.ids[UNKNOWN]
        return torch.tensor([vocabulary.ids.get(word, unknown) for word in self.numbers])


def split_sentences(documents: Iterable[Sequence[str]], length: int) -> Iterator[list[str]]:
    """The words of each sentence; a sentence of more than `length` words is cut into several."""
    for document in documents:
        for sentence in document:
            words = sentence.split()
            yield from (words[start : start + length] for start in range(0, len(words), length))


def count_words(sentences: Iterable[Sequence[str]], size: int, min_count: int) -> Vocabulary:
    """The marks and the most frequent words, `size` in all."""
    words = Vocabulary.count(sentences, min_count=min_count, first=MARKS, limit=size)
    if len(words) == len(MARKS):
        raise InvalidInput(f"no word is in the text {min_count} times; lower min_count")
    return words


class WordSentences(Examples):
    """Batches: `characters` (rows, words, width), `ids` in the vocabulary, and `mask` (True: real).

    Rows are sentences between `<S>` and `</S>`, of similar lengths in a batch.
    """

    def __init__(
        self,
        sentences: Sequence[np.ndarray],
        characters: Tensor,
        targets: Tensor,
        batch: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if not sentences:
            raise InvalidInput("there are no sentences")
        super().__init__([Example(row, ()) for row in sentences], batch, seed=seed, shuffle=shuffle)  # type: ignore[arg-type]
        self.characters, self.targets = characters, targets

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        rows = [self.examples[number].ids for number in numbers]
        words = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
        mask = np.zeros(words.shape, dtype=bool)
        for number, row in enumerate(rows):
            words[number, : len(row)], mask[number, : len(row)] = row, True
        chosen, real = torch.from_numpy(words), torch.from_numpy(mask)
        return {
            "characters": self.characters[chosen].masked_fill_(~real[..., None], 0),
            "ids": self.targets[chosen],
            "mask": real,
        }

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for row in self.examples:
            digest.update(np.asarray(row.ids).tobytes())
        for table in (self.characters, self.targets):
            digest.update(table.numpy().tobytes())
        order = f"shuffled by {self.seed}" if self.shuffle else "in order"
        return f"{len(self.examples)} sentences {digest.hexdigest()[:16]}, batches of {self.batch}, {order}"


__all__ = ["BEGIN", "END", "UNKNOWN", "Vocabulary", "WordSentences", "WordTypes", "count_words", "split_sentences"]
