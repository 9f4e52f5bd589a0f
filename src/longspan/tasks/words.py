"""Word vectors (word2vec, Mikolov et al. 2013): each word from the words around it, by skip-gram or CBOW."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.sets import named as named_sets
from longspan.data.text.word_windows import SPLITS, Vocabulary, WordIds, WordWindows, sentences
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model
from longspan.models.word_base import WordVectors
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss

MODES, OUTPUTS = ("skip-gram", "cbow"), ("negative", "hierarchical")
RULES = ("code", "paper", "none")


@dataclass
class WordMetrics(Metrics):
    """The mean loss per prediction, with negatives that are the same at every evaluation."""

    nats: float = 0.0
    count: int = 0

    def add(self, other: Metrics) -> None:
        assert isinstance(other, WordMetrics)
        self.nats, self.count = self.nats + other.nats, self.count + other.count

    def result(self) -> dict[str, float]:
        return {"loss": self.nats / max(self.count, 1)}


class AroundWords(Objective):
    """Each centre from the words around it: one prediction per pair (skip-gram) or per centre (CBOW)."""

    unit = "pairs"

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def count(self, batch: Batch) -> int:
        mask = batch["mask"]
        return int((mask if self.mode == "skip-gram" else mask.any(1)).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        table = WordVectors.require(model, Words.name)
        return TaskLoss(table.loss(batch["contexts"], batch["centres"], batch["mask"], batch["negatives"]), {})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[WordMetrics, Any]:
        return WordMetrics(float(self.loss(model, batch).total), self.count(batch)), None


class Words(Task):
    """Word vectors from a text file or a named set."""

    name = "words"

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        set: str | None = option(None, "a named data set of text; see `longspan data list`")
        train: str | None = option(None, "a text file, if no set is named")
        held_out: str | None = option(None, "a held-out file; the end of the first unless given")
        test: str | None = option(None, "a test file")
        share: float = option(0.01, "share of the text to hold out, if held_out is not given", low=0, high=0.9)
        split: str = option("spaces", "words are between spaces, or runs of letters and digits", choices=SPLITS)
        lowercase: bool = option(False, "lower-case the text")
        min_count: int = option(5, "words seen less often are left out", low=1)
        mode: str = option("skip-gram", "what predicts a word: each word around it, or their mean", choices=MODES)
        output: str = option("negative", "negative sampling, or a hierarchical softmax", choices=OUTPUTS)
        window: int = option(5, "largest radius around a word; one up to it is drawn for each", low=1)
        negatives: int = option(5, "negative samples per word: 5 to 20 for small texts, 2 to 5 for large", low=1)
        power: float = option(0.75, "negatives are drawn in proportion to count^power", low=0)
        subsample: str = option("code", "the rule by which frequent words are dropped", choices=RULES)
        threshold: float | None = option(None, "of that rule; 1e-3 for code and 1e-5 for paper unless given", low=1e-12)
        widen: bool = option(True, "whether dropped words leave no gap, so that windows reach further, as in the tool")
        batch: int = option(1, "blocks of 1000 words per update", low=1)

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options, paths = self.options, self._files(folders)
        try:
            vocabulary = Vocabulary.count(self._read(paths["train"]), min_count=options.min_count)
        except InvalidInput as error:
            raise InvalidInput(f"{paths['train']}: {error}; lower min_count") from None
        texts = {split: WordIds.read(self._read(path), vocabulary) for split, path in paths.items()}
        if "held_out" not in texts:
            whole = texts["train"]
            cut = round(len(whole) * (1 - options.share))
            if min(cut, len(whole) - cut) < 2:
                raise InvalidInput(
                    f"{paths['train']} has {len(whole)} known words, too few to hold some out; give a held_out file"
                )
            texts["train"], texts["held_out"] = whole[slice(0, cut)], whole[slice(cut, None)]
        data = {split: self._data(text, vocabulary, folders.seed, split) for split, text in texts.items()}
        shared = ("mode", "output", "window", "negatives", "power", "min_count", "subsample", "threshold", "widen")
        needs = {name: getattr(options, name) for name in (*shared, "split", "lowercase")}
        return Prepared(
            data["train"],
            data["held_out"],
            AroundWords(options.mode),
            data.get("test"),
            needs={"vocabulary": len(vocabulary), **needs},
            facts={
                **{f"{split} words": len(text) for split, text in texts.items()},
                "vocabulary": len(vocabulary),
                "kept of frequent words": f"{100 * float(data['train'].keep[texts['train'].ids].mean()):.0f} %",
            },
            words=vocabulary,
        )

    def _read(self, path: Path) -> Any:
        return sentences(path, self.options.split, self.options.lowercase)

    def _data(self, text: WordIds, vocabulary: Vocabulary, seed: int, split: str) -> WordWindows:
        options = self.options
        return WordWindows(
            text,
            vocabulary.counts,
            options.batch,
            window=options.window,
            negatives=options.negatives if options.output == "negative" else 0,
            power=options.power,
            subsample=options.subsample,
            threshold=options.threshold,
            widen=options.widen,
            seed=seed,
            shuffle=split == "train",
        )

    def _files(self, folders: DataPaths) -> dict[str, Path]:
        options = self.options
        if (options.set is None) == (options.train is None):
            raise InvalidOption("[task] names a set, or a file to train on: one of the two")
        if options.set is not None:
            named = named_sets.find(options.set)
            if named.kind != "language":
                raise InvalidOption(f"the set {options.set!r} is for the task {named.kind!r}; give a set of text")
            return named_sets.files(options.set, folders.data)
        given = {"train": options.train, "held_out": options.held_out, "test": options.test}
        return {split: Path(name) for split, name in given.items() if name is not None}


__all__ = ["AroundWords", "WordMetrics", "Words"]
