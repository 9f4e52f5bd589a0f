"""word2vec: skip-gram with negative sampling (Mikolov et al. 2013a, 2013b), neighbours and analogies.

>>> model = Word2Vec.from_corpus(sentences, dim=100).fit(sentences)
>>> model.neighbours("river", 5)
>>> model.analogy("man", "king", "woman")
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from longspan import config
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model
from longspan.models.classics import analogies, skip_gram
from longspan.models.classics.analogies import AnalogyReport
from longspan.models.classics.vocabulary import Vocabulary

WORDS = "vocabulary.txt"
BLOCK = 20_000  # tokens whose windows are cut at once
FINAL = 1e-4  # the learning rate ends at this part of itself

Found = list[tuple[str, float]]  # words with their scores, best first
Progress = Callable[[float, float], None]


class Word2Vec(Model):
    """Two vectors per word, as a centre (`inputs`, the ones that are used) and as a context (`outputs`)."""

    name = "word2vec"
    paper = "Mikolov et al. 2013"
    files = (WORDS,)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        vocabulary: int = option(1, "number of words; from_corpus counts them", low=1)
        dim: int = option(100, "width of the vectors", low=1)
        window: int = option(5, "largest radius around a centre", low=1)
        negatives: int = option(5, "negative samples per pair: 5 to 20 for small corpora, 2 to 5 for large", low=1)
        power: float = option(0.75, "negatives are drawn in proportion to count^power", low=0)
        min_count: int = option(5, "words seen less often are left out", low=1)
        subsample: str = option("code", "by which rule frequent words are dropped", choices=("code", "paper", "none"))
        threshold: float | None = option(None, "of that rule; 1e-3 for code and 1e-5 for paper unless given", low=1e-12)
        widen: bool = option(True, "dropped words leave no gap, so that windows reach further, as in the tool")
        epochs: int = option(5, "passes over the corpus", low=1)
        rate: float = option(0.025, "learning rate at the start; it falls linearly", low=0)
        batch: int = option(1024, "pairs per step; fewer for small vocabularies", low=1)
        seed: int = option(0, "of the vectors' start and of everything that is drawn", low=0)

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.words: Vocabulary | None = None
        start = torch.rand(options.vocabulary, options.dim, generator=self._generator())
        self.inputs = nn.Parameter((start - 0.5) / options.dim)
        self.outputs = nn.Parameter(torch.zeros(options.vocabulary, options.dim))

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.options.seed)

    @classmethod
    def of(cls, words: Vocabulary, **options: Any) -> "Word2Vec":
        """An untrained model of these words."""
        if "vocabulary" in options:
            raise InvalidOption("word2vec: vocabulary is the number of the words given; leave it out")
        model = cls.build(vocabulary=len(words), **options)
        model.words = words
        return model

    @classmethod
    def from_corpus(cls, corpus: Iterable[Sequence[str]], **options: Any) -> "Word2Vec":
        """An untrained model of the words that a corpus of sentences has at least `min_count` times."""
        checked = config.make(cls.Options, options, cls.name)
        return cls.of(Vocabulary.count(corpus, min_count=checked.min_count), **options)

    def fit(self, corpus: Iterable[Sequence[str]], *, progress: Progress | None = None) -> "Word2Vec":
        """Trains on a corpus of sentences; `progress` is called with the part done and the learning rate.

        Windows do not reach over the end of a sentence. Numbers in memory: two per token of the corpus.
        """
        options, words = self.options, self._words()
        if not any(words.counts):
            raise InvalidInput("these words have no counts (they came from a .vec file), so negatives cannot be drawn")
        generator = self._generator()
        tokens, sentences = skip_gram.number(corpus, words.ids)
        sampler = skip_gram.NegativeSampler(words.counts, options.power)
        keep = self._keep(words)
        done, total = 0, options.epochs * len(tokens)
        for _ in range(options.epochs):
            for block, own in skip_gram.blocks(tokens, sentences, BLOCK):
                kept = torch.rand(len(block), generator=generator) < keep[block]
                pairs = skip_gram.pairs(
                    block, own, kept, window=options.window, widen=options.widen, generator=generator
                )
                # The order of the pairs is by offset; without a shuffle a batch would see one offset only.
                pairs = pairs[torch.randperm(len(pairs), generator=generator)]
                for begin in range(0, len(pairs), options.batch):
                    batch = pairs[begin : begin + options.batch]
                    part = (done + len(block) * begin / len(pairs)) / total
                    rate = options.rate * max(FINAL, 1 - part)
                    negatives = sampler.draw(len(batch), options.negatives, generator=generator)
                    skip_gram.update(
                        self.inputs.data, self.outputs.data, batch.to(self.device), negatives.to(self.device), rate
                    )
                done += len(block)
                if progress is not None:
                    progress(done / total, options.rate * max(FINAL, 1 - done / total))
        return self

    def _keep(self, words: Vocabulary) -> Float[Tensor, " words"]:
        """The probability that a token of each word stays."""
        rule = self.options.subsample
        counts = torch.tensor(words.counts, dtype=torch.float64)
        if rule == "none":
            return torch.ones_like(counts)
        threshold = skip_gram.RULES[rule] if self.options.threshold is None else self.options.threshold
        return skip_gram.keep_probability(counts / counts.sum(), threshold, rule)

    def vector(self, word: str) -> Float[Tensor, " dim"]:
        """A word's vector, as it was learnt; its length grows with how often and how consistently it was met."""
        return self.inputs.detach()[self._words().id(word)]

    @property
    def unit(self) -> Float[Tensor, "words dim"]:
        """All vectors at length 1."""
        return normalize(self.inputs.detach(), dim=-1)

    def neighbours(self, word: str, k: int = 10) -> Found:
        """The `k` words of largest cosine with a word, and the cosines; the word itself is left out."""
        unit, own = self.unit, self._words().id(word)
        return self._best(unit @ unit[own], k, [own])

    def analogy(self, a: str, b: str, c: str, *, method: str = "add", exclude: bool = True, k: int = 10) -> Found:
        """The best answers to "a is to b as c is to …" and their scores.

        `exclude` leaves out a, b and c. Without it the answer is nearly always b or c: the control of every analogy.
        """
        given = [self._words().id(word) for word in (a, b, c)]
        scores = analogies.scores(self.unit, torch.tensor([given], device=self.device), method)[0]
        return self._best(scores, k, given if exclude else [])

    def evaluate(self, questions: Path | str, *, method: str = "add", lower: bool = False) -> AnalogyReport:
        """Accuracies on a file of questions in the format of Mikolov et al. 2013a (`questions-words.txt`).

        a, b and c are excluded; the report has the control without exclusion as well. `lower` lowers the questions.
        """
        return analogies.evaluate(self.unit, self._words(), Path(questions), method=method, lower=lower)

    def _best(self, scores: Tensor, k: int, without: list[int]) -> Found:
        if k < 1:
            raise InvalidInput(f"expected k of at least 1, got {k}")
        left = len(scores) - len(set(without))
        best = scores.index_fill(0, torch.tensor(without, dtype=torch.long, device=scores.device), -torch.inf)
        values, ids = best.topk(min(k, left))
        return [(self._words().words[i], value) for i, value in zip(ids.tolist(), values.tolist())]

    def _words(self) -> Vocabulary:
        if self.words is None:
            raise InvalidInput("this word2vec has no words; make it with from_corpus, of, read_text or load")
        return self.words

    def write_files(self, folder: Path) -> None:
        self._words().write(folder / WORDS)

    def read_files(self, folder: Path) -> None:
        words = Vocabulary.read(folder / WORDS)
        if len(words) != len(self.inputs):
            raise InvalidInput(f"{folder / WORDS} has {len(words)} words, and the model has {len(self.inputs)}")
        self.words = words

    def write_text(self, path: Path | str) -> None:
        """The vectors in the tool's text format (`.vec`): a line with their number and width, then one per word."""
        words, vectors = self._words(), self.inputs.detach().cpu()
        with Path(path).open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            file.write(f"{len(words)} {vectors.shape[1]}\n")
            for word, vector in zip(words.words, vectors):
                file.write(f"{word} {' '.join(map(repr, vector.tolist()))}\n")

    @classmethod
    def read_text(cls, path: Path | str) -> "Word2Vec":
        """A model of the vectors in a `.vec` file. It can be asked, not trained: counts and contexts are missing."""
        path = Path(path)
        if not path.is_file():
            raise InvalidInput(f"{path} is not there: vectors in word2vec's text format")
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            head = file.readline().split()
            if len(head) != 2 or not all(re.fullmatch("0*[1-9][0-9]{,11}", part) for part in head):
                raise InvalidInput(f"{path}, line 1: expected the number of words and their width, got {head!r:.80}")
            count, dim = map(int, head)
            if 2 * count * dim > path.stat().st_size:  # a number takes a digit and a space
                raise InvalidInput(f"{path} says {count} words of {dim} numbers, and is too short for them")
            vectors, words = torch.empty(count, dim), list[str]()
            for number, line in enumerate(file, start=2):
                word, *numbers = line.rstrip(" \r\n").split(" ")
                if len(words) == count or not word or len(numbers) != dim:
                    raise InvalidInput(f"{path}, line {number}: expected {count} lines of a word and {dim} numbers")
                try:
                    vectors[len(words)] = torch.tensor([float(part) for part in numbers])
                except ValueError as error:
                    raise InvalidInput(f"{path}, line {number}: {error}") from None
                words.append(word)
        if len(words) < count:
            raise InvalidInput(f"{path} says it has {count} words, and has {len(words)}; it was cut off")
        model = cls.of(Vocabulary(words, [0] * count), dim=dim)
        model.inputs.data.copy_(vectors)
        return model.eval()


__all__ = ["Word2Vec"]
