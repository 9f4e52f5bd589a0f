"""Words and their vectors, wherever they come from: neighbours, analogies, and the question files of the papers."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from longspan.errors import InvalidInput
from longspan.models.classics import analogies
from longspan.models.classics.analogies import AnalogyReport
from longspan.models.classics.vector_files import read_vectors
from longspan.models.classics.vocabulary import Vocabulary

ScoredWords = list[tuple[str, float]]  # best first


@dataclass(frozen=True)
class WordTable:
    """Words with a vector each."""

    words: Vocabulary
    vectors: Float[Tensor, "words dim"]

    @classmethod
    def read(cls, path: Path) -> "WordTable":
        """Of a file in word2vec's text or binary format, or in GloVe's."""
        words, vectors = read_vectors(path)
        return cls(Vocabulary(words, [0] * len(words)), vectors)

    @cached_property
    def unit(self) -> Float[Tensor, "words dim"]:
        """All vectors at length 1."""
        return normalize(self.vectors.float(), dim=-1)

    @cached_property
    def lowercase(self) -> bool:
        """Whether no word has an upper-case letter."""
        return all(word == word.lower() for word in self.words.words)

    def first(self, count: int | None) -> "WordTable":
        """Of the first `count` words, which are the most frequent ones in most files."""
        if count is None or count >= len(self.words):
            return self
        if count < 1:
            raise InvalidInput(f"expected at least 1 word, got {count}")
        return WordTable(Vocabulary(self.words.words[:count], self.words.counts[:count]), self.vectors[:count])

    def id(self, word: str) -> int:
        """The row of a word; in lower case, if the table has no other."""
        return self.words.id(word.lower() if word not in self.words and word.lower() in self.words else word)

    def neighbours(self, word: str, k: int = 10) -> ScoredWords:
        """The `k` words of largest cosine with a word, and the cosines; the word itself is left out."""
        row = self.id(word)
        return self._best(self.unit @ self.unit[row], k, [row])

    def analogy(self, a: str, b: str, c: str, *, method: str = "add", exclude: bool = True, k: int = 10) -> ScoredWords:
        """The best answers to "a is to b as c is to …" and their scores.

        `exclude` leaves out a, b and c. Without it the answer is nearly always b or c: the control of every analogy.
        """
        given = [self.id(word) for word in (a, b, c)]
        scores = analogies.scores(self.unit, torch.tensor([given], device=self.unit.device), method)[0]
        return self._best(scores, k, given if exclude else [])

    def evaluate(self, questions: Path, *, method: str = "add", lower: bool | None = None) -> AnalogyReport:
        """Accuracies on a file of questions in the format of Mikolov et al. 2013a (`questions-words.txt`).

        a, b and c are excluded; the report has controls as well. `lower` lowers the questions; unless given, it is done
        if all words are lower-case.
        """
        lower = self.lowercase if lower is None else lower
        return analogies.evaluate(self.unit, self.words, questions, method=method, lower=lower)

    def _best(self, scores: Tensor, k: int, without: list[int]) -> ScoredWords:
        if k < 1:
            raise InvalidInput(f"expected k of at least 1, got {k}")
        left = len(scores) - len(set(without))
        best = scores.index_fill(0, torch.tensor(without, dtype=torch.long, device=scores.device), -torch.inf)
        values, ids = best.topk(min(k, left))
        return [(self.words.words[i], value) for i, value in zip(ids.tolist(), values.tolist())]


__all__ = ["ScoredWords", "WordTable"]
