"""What pre-training tasks share: a corpus of documents, the texts cut from it, and their masks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from longspan.config import option
from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled, draws
from longspan.data.text import sentence_pairs
from longspan.data.text.blocks import Batches
from longspan.data.text.corpora import UNKNOWN, Corpus, read_documents, write_corpus
from longspan.data.text.masking import Masking, choose, hide
from longspan.data.text.row_texts import RowTexts
from longspan.data.text.tables import is_table
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput
from longspan.nn.loss import IGNORED
from longspan.tasks import starting
from longspan.tasks.base import DataPaths, Task
from longspan.tasks.splits import drop_empty


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of the begin, end, mask and padding tokens."""

    begin: int
    end: int
    mask: int
    padding: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "SpecialTokens":
        begin = tokenizer.bos if tokenizer.cls is None else tokenizer.cls
        end = tokenizer.eos if tokenizer.sep is None else tokenizer.sep
        if begin is None or end is None or tokenizer.mask is None or tokenizer.pad is None:
            raise InvalidInput(
                "the tokenizer must have tokens for beginning, end, mask and padding; "
                f"it has {', '.join(tokenizer.special) or 'none'}"
            )
        return cls(begin, end, tokenizer.mask, tokenizer.pad)


class Planned(Data):
    """Texts that are planned anew for each epoch; subclasses load them."""

    def __init__(
        self, corpus: Corpus, kind: str, length: int, batch: int, *, short: float, seed: int, shuffle: bool
    ) -> None:
        self.corpus, self.kind, self.length, self.batch = corpus, kind, length, batch
        self.short, self.seed, self.shuffle = short, seed, shuffle
        self._plans: dict[int, sentence_pairs.SpanPlan] = {}  # the last one only; every batch asks for it

    def visit(self, epoch: int) -> int:
        """The epoch whose draws are used."""
        return epoch

    def plan(self, epoch: int) -> sentence_pairs.SpanPlan:
        visit = self.visit(epoch)
        if visit not in self._plans:
            plan = sentence_pairs.plan(
                self.corpus, self.kind, self.length, short=self.short, seed=self.seed, epoch=visit
            )
            self._plans = {visit: plan}
        return self._plans[visit]

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        count = len(self.plan(epoch))
        return Batches(Shuffled(count, self.seed, epoch) if self.shuffle else range(count), self.batch)

    def fingerprint(self) -> str:
        order = f"shuffled by {self.seed}" if self.shuffle else f"in order, drawn by {self.seed}"
        shape = f"texts of {self.length} ({self.kind}, {self.short:g} short), batches of {self.batch}"
        return f"{self.corpus.fingerprint()}, {shape}, {order}"


class MaskedTexts(Planned):
    """Batches: `ids` with masked tokens, `labels` with their originals (-100 elsewhere), `real`, `segments`, `pair`.

    `number` identifies an example, so that random draws in evaluation are the same in any batch.
    """

    def __init__(
        self,
        corpus: Corpus,
        kind: str,
        length: int,
        batch: int,
        *,
        masking: Masking,
        tokenizer: Tokenizer,
        short: float = 0.1,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        super().__init__(corpus, kind, length, batch, short=short, seed=seed, shuffle=shuffle)
        self.masking, self.around = masking, SpecialTokens.of(tokenizer)
        special = list(tokenizer.specials.values()) if masking.plain_random else []
        self.drawn_from = np.setdiff1d(np.arange(tokenizer.size), special)

    def visit(self, epoch: int) -> int:
        return self.masking.visit(epoch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        return self._batch([self._example(number, epoch) for number in numbers], numbers)

    def _batch(self, rows: Sequence[dict[str, Any]], numbers: Sequence[int]) -> dict[str, Any]:
        longest = max(len(row["ids"]) for row in rows)
        fill = {"ids": self.around.padding, "labels": IGNORED, "real": 0, "segments": 0}
        batch: dict[str, Any] = {}
        for name, value in fill.items():
            table = np.full((len(rows), longest), value, dtype=np.int64)
            for index, row in enumerate(rows):
                table[index, : len(row[name])] = row[name]
            batch[name] = torch.from_numpy(table)
        batch["real"] = batch["real"].bool()
        batch["pair"] = torch.tensor([row["pair"] for row in rows])
        batch["number"] = torch.tensor(list(numbers))
        return batch

    def _example(self, number: int, epoch: int) -> dict[str, Any]:
        generator = draws(self.seed, self.visit(epoch), number)
        first, second, label = self.plan(epoch).at(number)
        around, tokens = self.around, self.corpus.tokens
        paired = len(second) > 0
        first, second = sentence_pairs.cut(first, second, self.length - (3 if paired else 2), generator)
        parts: list[Any] = [[around.begin], tokens[first.start : first.stop], [around.end]]
        begins: list[Any] = [[1], self.corpus.begins[first.start : first.stop], [1]]
        segments = [0] * (len(first) + 2)
        if paired:
            parts += [tokens[second.start : second.stop], [around.end]]
            begins += [self.corpus.begins[second.start : second.stop], [1]]
            segments += [1] * (len(second) + 1)
        ids = np.concatenate(parts).astype(np.int64)
        starts = np.concatenate(begins).astype(bool)
        # A cut may split a word: its rest is a word of its own, not part of the previous one.
        starts[[1, *([len(first) + 2] if paired else [])]] = True
        words = starts.cumsum()
        candidates = np.ones(len(ids), dtype=bool)
        candidates[[0, len(first) + 1, len(ids) - 1]] = False
        chosen = choose(candidates, words, self.masking, generator)
        hidden = hide(ids, chosen, words, self.masking, generator, mask=around.mask, drawn_from=self.drawn_from)
        return {
            "ids": hidden,
            "labels": np.where(chosen, ids, IGNORED),
            "real": np.ones(len(ids), dtype=np.int64),
            "segments": segments,
            "pair": label,
        }

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}, {self.masking}"


class Pretraining(Task):
    """A task on documents of sentences, of a named set or of your own files."""

    starting_model = starting.ENCODER
    starting_train = starting.UNLABELLED

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        set: str | None = option(None, "a named data set; see `longspan data list`")
        train: str | None = option(
            None, "a file with a sentence per line and an empty line between documents, a table, or a folder of texts"
        )
        held_out: str | None = option(None, "a held-out file; the last documents of the first unless given")
        test: str | None = option(None, "a test file")
        text: str = option("text", "the column of the text, if the file is a table", column=True)
        encoding: str | None = option(None, "encoding of the files; by their first bytes, or UTF-8, unless given")
        share: float = option(0.1, "share of the documents to hold out, if held_out is not given", low=0, high=0.9)
        tokenizer: TokenizerOptions = option(TokenizerOptions, "the tokenizer to learn")
        length: int = option(128, "most tokens of a text, with special tokens", low=4)
        batch: int = option(32, "texts per batch", low=1)
        short: float = option(0.1, "share of texts that are shorter, of random length", low=0, high=1)

    options: Options

    def _corpora(self, folders: DataPaths, tokenizer: Tokenizer | None) -> tuple[dict[str, Corpus], Tokenizer]:
        """The documents of each split as ids, and the tokenizer: the given or a learned one."""
        options = self.options
        given = {"train": options.train, "held_out": options.held_out, "test": options.test}
        documents = read_documents(
            options.set, given, folders.data, options.share, column=options.text, encoding=options.encoding
        )

        for name in given.values():
            if name is not None and is_table(Path(name)):
                _, empty = RowTexts(Path(name), options.text, options.encoding).count()
                drop_empty([(row, options.text) for row in empty], Path(name))

        def texts() -> Iterator[str]:
            for document in documents["train"]():
                yield "\n".join(document).replace(UNKNOWN, "")

        def source(split: str) -> str:
            return options.set or str(given[split] or options.train)

        if tokenizer is None:
            tokenizer = learn(options.tokenizer, texts())
        SpecialTokens.of(tokenizer)
        corpora = {
            split: write_corpus(folders.work / split, read(), tokenizer, source(split))
            for split, read in documents.items()
        }
        return corpora, tokenizer

    def _facts(self, data: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
        facts: dict[str, Any] = {"vocabulary": tokenizer.size}
        for split, texts in data.items():
            planned = texts.plan(0)
            facts[f"{split} tokens"] = len(texts.corpus.tokens)
            facts[f"{split} texts"] = len(planned)
            if texts.kind != "none":
                facts[f"{split} negative pairs"] = round(planned.negatives, 4)
        if self.options.train is not None and self.options.held_out is None:
            counts = [len(data[split].corpus) for split in ("train", "held_out")]
            facts["held out"] = f"the last {counts[1]:,} of {sum(counts):,} documents"
        return facts


class MaskedPretraining(Pretraining):
    """A task on masked texts."""

    starting_task = MappingProxyType({"pairs": "none"})  # any texts will do

    @dataclass(frozen=True, kw_only=True)
    class Options(Pretraining.Options):
        pairs: str = option(
            "next",
            "a text is two spans, consecutive or not (next), in order or swapped (order), or one span (none)",
            choices=sentence_pairs.KINDS,
        )
        masking: Masking = option(Masking, "which tokens are masked, and how")

    options: Options

    def _data(self, folders: DataPaths, tokenizer: Tokenizer | None) -> tuple[dict[str, MaskedTexts], Tokenizer]:
        options = self.options
        corpora, tokenizer = self._corpora(folders, tokenizer)
        data = {
            split: self._texts(
                corpus,
                options.pairs,
                options.length,
                options.batch,
                masking=options.masking,
                tokenizer=tokenizer,
                short=options.short,
                seed=folders.seed,
                shuffle=split == "train",
            )
            for split, corpus in corpora.items()
        }
        return data, tokenizer

    def _texts(self, *given: Any, **options: Any) -> MaskedTexts:
        return MaskedTexts(*given, **options)


__all__ = ["MaskedPretraining", "MaskedTexts", "Planned", "Pretraining", "SpecialTokens"]
