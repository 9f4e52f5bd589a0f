"""Words with the words around them, for word2vec: text files as ids, and windows drawn for each epoch.

As in the authors' tool, frequent words are dropped at random, a radius is drawn for each centre, and a text is read in
blocks of at most 1000 words. Windows do not reach over the end of a line or of a block.
"""

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled, draws
from longspan.data.text import text_files
from longspan.data.text.blocks import Batches
from longspan.errors import InvalidInput
from longspan.models.classics.skip_gram import RULES, keep_probability
from longspan.models.classics.vocabulary import SPLITS, Vocabulary, split_words

BLOCK = 1000  # words, as MAX_SENTENCE_LENGTH of the tool
PIECE = 1 << 20  # bytes read at once


def sentences(path: Path, split: str, lowercase: bool) -> Iterator[list[str]]:
    """The words of each line. A line that is longer than a piece is cut between words."""
    rest = ""
    for piece in text_files.blocks(path, PIECE):
        *lines, rest = (rest + piece).split("\n")
        yield from (split_words(line, split, lowercase) for line in lines)
        if len(rest) > PIECE and (cut := rest.rfind(" ")) > 0:
            yield split_words(rest[:cut], split, lowercase)
            rest = rest[cut:]
    yield split_words(rest, split, lowercase)


@dataclass(frozen=True)
class WordIds:
    """The known words of a text as ids, in one row, and the number of the line of each."""

    ids: np.ndarray
    lines: np.ndarray

    @classmethod
    def read(cls, lines: Iterable[Sequence[str]], vocabulary: Vocabulary) -> "WordIds":
        ids, sizes = array("i"), array("q")
        for words in lines:
            known = [vocabulary.ids[word] for word in words if word in vocabulary.ids]
            ids.extend(known)
            sizes.append(len(known))
        numbers = np.repeat(np.arange(len(sizes), dtype=np.int32), np.frombuffer(sizes, dtype=np.int64))
        return cls(np.frombuffer(ids, dtype=np.int32) if len(ids) else np.zeros(0, np.int32), numbers)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> "WordIds":
        return WordIds(self.ids[part], self.lines[part])


class WordWindows(Data):
    """Batches: `centres`, `contexts` (the words around each, 2 · window places), `mask` and `negatives`.

    An example is a block of words. A batch has as many rows as its blocks have centres.
    """

    def __init__(
        self,
        text: WordIds,
        counts: Sequence[int],
        batch: int,
        *,
        window: int = 5,
        negatives: int = 5,
        power: float = 0.75,
        subsample: str = "code",
        threshold: float | None = None,
        widen: bool = True,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if len(text) < 2:
            raise InvalidInput(f"the text has {len(text)} known words; windows need at least two")
        self.text, self.batch, self.window, self.negatives, self.widen = text, batch, window, negatives, widen
        self.seed, self.shuffle = seed, shuffle
        times = torch.tensor(counts, dtype=torch.float64)
        self.keep = np.ones(len(counts))
        if subsample != "none":
            bound = RULES[subsample] if threshold is None else threshold
            self.keep = keep_probability(times / times.sum(), bound, subsample).numpy()
        weights = (times**power).numpy()
        self.up_to = np.cumsum(weights / weights.sum())
        self.rule = f"{subsample} {threshold or ''}, power {power:g}, window {window}, {negatives} negatives, {widen}"

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        count = -(-len(self.text) // BLOCK)
        return Batches(Shuffled(count, self.seed, epoch) if self.shuffle else range(count), self.batch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        parts = [self._block(number, epoch) for number in numbers]
        names = ("centres", "contexts", "mask", "negatives")
        return {name: torch.from_numpy(np.concatenate(arrays)) for name, arrays in zip(names, zip(*parts))}

    def _block(self, number: int, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        block = self.text[slice(number * BLOCK, (number + 1) * BLOCK)]
        random, ids, lines = draws(self.seed, epoch, number), block.ids, block.lines
        kept = random.random(len(ids)) < self.keep[ids]
        if self.widen:
            ids, lines, kept = ids[kept], lines[kept], np.ones(int(kept.sum()), dtype=bool)
        centres = np.flatnonzero(kept)
        radius = random.integers(1, self.window + 1, len(centres))
        offsets = np.concatenate([np.arange(-self.window, 0), np.arange(1, self.window + 1)])
        places = centres[:, None] + offsets
        inside = (places >= 0) & (places < len(ids)) & (np.abs(offsets) <= radius[:, None])
        places = np.where(inside, places, centres[:, None])  # a masked place has the centre, which is there anyway
        mask = inside & (lines[places] == lines[centres][:, None]) & kept[places]
        uniform = random.random((len(centres), self.negatives))
        negatives = np.minimum(np.searchsorted(self.up_to, uniform, side="right"), len(self.up_to) - 1)
        words = ids.astype(np.int64)
        return words[centres], words[places], mask, negatives

    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.text.ids.tobytes())
        digest.update(self.text.lines.tobytes())
        order = f"shuffled by {self.seed}" if self.shuffle else "in order"
        return f"{digest.hexdigest()[:16]}, {self.rule}, batches of {self.batch}, {order}"


__all__ = ["BLOCK", "SPLITS", "Vocabulary", "WordIds", "WordWindows", "sentences"]
