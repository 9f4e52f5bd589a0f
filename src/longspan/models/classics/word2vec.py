"""word2vec: skip-gram with negative sampling (Mikolov et al. 2013a, 2013b), neighbours and analogies.

>>> model = Word2Vec.from_corpus(sentences, dim=100).fit(sentences)
>>> model.neighbours("river", 5)
>>> model.analogy("man", "king", "woman")
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding, logsigmoid

from longspan import config
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.classics import huffman, skip_gram
from longspan.models.classics.analogies import AnalogyReport
from longspan.models.classics.vector_files import write_vectors
from longspan.models.classics.vocabulary import SPLITS, Vocabulary, split_words
from longspan.models.classics.word_table import ScoredWords, WordTable
from longspan.models.word_base import WordVectors

BLOCK = 20_000  # tokens whose windows are cut at once
MODES, OUTPUTS = ("skip-gram", "cbow"), ("negative", "hierarchical")
FINAL = 1e-4  # the learning rate ends at this part of itself

Progress = Callable[[float, float], None]


class Word2Vec(WordVectors):
    """Two vectors per word, as a centre (`inputs`, the ones that are used) and as a context (`outputs`)."""

    name = "word2vec"
    paper = "Mikolov et al. 2013"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        vocabulary: int = option(1, "number of words; from_corpus counts them", low=1)
        dim: int = option(100, "width of the vectors", low=1)
        mode: str = option("skip-gram", "what predicts a word: each word around it, or their mean", choices=MODES)
        output: str = option("negative", "negative sampling, or a hierarchical softmax", choices=OUTPUTS)
        split: str = option("spaces", "words are between spaces, or runs of letters and digits", choices=SPLITS)
        lowercase: bool = option(False, "whether texts are lower-cased")
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
        self._tree: tuple[Tensor, Tensor, Tensor] | None = None
        start = torch.rand(options.vocabulary, options.dim, generator=self._generator())
        self.inputs = nn.Parameter((start - 0.5) / options.dim)
        self.outputs = nn.Parameter(torch.zeros(options.vocabulary, options.dim))

    @property
    def vectors(self) -> Float[Tensor, "words dim"]:
        return self.inputs.detach()

    def tokens(self, text: str) -> list[str]:
        """The words of a text, as they were split in training."""
        return split_words(text, self.options.split, self.options.lowercase)

    def loss(
        self,
        contexts: Int[Tensor, "centres around"],
        centres: Int[Tensor, " centres"],
        mask: Bool[Tensor, "centres around"],
        negatives: Int[Tensor, "centres negatives"],
    ) -> Float[Tensor, ""]:
        """-Σ log σ(±u·x) over each centre's output rows u, + for its own and - for negatives, summed over inputs x.

        The inputs are the vectors of the words around it (skip-gram) or their mean (CBOW). All inputs of a centre share
        its negatives, so that one matrix product serves them (Ji et al. 2016); a negative that is the centre itself is
        left out. With the hierarchical softmax, the rows are the inner nodes on the centre's path in a Huffman tree.
        """
        x = embedding(contexts, self.inputs, sparse=True)
        if self.options.mode == "cbow":
            real = mask[:, :, None].to(x.dtype)
            x = (x * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp_min(1)
            mask = mask.any(1, keepdim=True)
        rows, positive, counted = self._output_rows(centres, negatives)
        u = embedding(rows, self.outputs, sparse=True)
        scores = torch.bmm(x, u.transpose(1, 2))
        logs = logsigmoid(torch.where(positive[:, None], scores, -scores))
        return -(logs * (mask[:, :, None] & counted[:, None])).sum()

    def _output_rows(self, centres: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output rows of each centre, which of them are to score high, and which count."""
        if self.options.output == "hierarchical":
            if self._tree is None:
                self._tree = huffman.paths(self._words().counts)
            nodes, codes, inside = (table.to(centres.device) for table in self._tree)
            return nodes[centres], ~codes[centres], inside[centres]
        rows = torch.cat([centres[:, None], negatives], 1)
        positive = torch.zeros_like(rows, dtype=torch.bool)
        positive[:, 0] = True
        return rows, positive, positive | (rows != centres[:, None])

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
    def table(self) -> WordTable:
        """The words and their vectors."""
        return WordTable(self._words(), self.vectors)

    def neighbours(self, word: str, k: int = 10) -> ScoredWords:
        """The `k` words of largest cosine with a word, and the cosines; the word itself is left out."""
        return self.table.neighbours(word, k)

    def analogy(self, a: str, b: str, c: str, *, method: str = "add", exclude: bool = True, k: int = 10) -> ScoredWords:
        """The best answers to "a is to b as c is to …" and their scores; see `WordTable.analogy`."""
        return self.table.analogy(a, b, c, method=method, exclude=exclude, k=k)

    def evaluate(self, questions: Path | str, *, method: str = "add", lower: bool | None = False) -> AnalogyReport:
        """Accuracies on a file of questions; see `WordTable.evaluate`."""
        return self.table.evaluate(Path(questions), method=method, lower=lower)

    def _words(self) -> Vocabulary:
        if self.words is None:
            raise InvalidInput("this word2vec has no words; make it with from_corpus, of, read_text or load")
        return self.words

    def write_files(self, folder: Path) -> None:
        self._words().write(folder / self.files[0])

    def read_files(self, folder: Path) -> None:
        path = folder / self.files[0]
        words = Vocabulary.read(path)
        if len(words) != len(self.inputs):
            raise InvalidInput(f"{path} has {len(words)} words, and the model has {len(self.inputs)}")
        self.words = words

    def write_text(self, path: Path | str) -> None:
        """The vectors in the tool's text format (`.vec`): a line with their number and width, then one per word."""
        with Path(path).open("wb") as file:
            write_vectors(file, self._words().words, self.vectors)

    @classmethod
    def read_text(cls, path: Path | str) -> "Word2Vec":
        """A model of the vectors in a file. It can be asked, not trained: counts and contexts are missing."""
        table = WordTable.read(Path(path))
        model = cls.of(table.words, dim=table.vectors.shape[1])
        model.inputs.data.copy_(table.vectors)
        return model.eval()


__all__ = ["Word2Vec"]
