"""Language modelling: the next token, given the block so far or, with a memory, the whole stream so far."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch, Data
from longspan.data.sets import named as named_sets
from longspan.data.sets.prepared_tokens import Sizes, fingerprint, read_prepared
from longspan.data.text import text_files
from longspan.data.text.blocks import Streams, TokenBlocks
from longspan.data.text.corpora import READERS, TITLE
from longspan.data.text.row_texts import RowTexts
from longspan.data.text.tables import is_table
from longspan.data.text.token_files import TokenFile, Tokens, write_tokens
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import CausalModel, Model
from longspan.nn.loss import IGNORED
from longspan.tasks import starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss
from longspan.tasks.splits import describe, drop_empty, hold_out_numbers


@dataclass
class LanguageMetrics(Metrics):
    """Loss and perplexity per token, bits per byte and perplexity per word."""

    nats: float = 0.0
    tokens: int = 0
    bytes_per_token: float | None = None  # of the text before tokenization
    words_per_token: float | None = None  # separated by spaces, counting the end of a line as a word, as WikiText does

    def add(self, other: Metrics) -> None:
        assert isinstance(other, LanguageMetrics)
        self.nats, self.tokens = self.nats + other.nats, self.tokens + other.tokens

    def result(self) -> dict[str, float]:
        mean = self.nats / max(self.tokens, 1)
        metrics = {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}
        if self.bytes_per_token:
            metrics["bits_per_byte"] = mean / math.log(2) / self.bytes_per_token
        if self.words_per_token:
            metrics["word_perplexity"] = math.exp(min(mean / self.words_per_token, 700.0))
        return metrics


class NextToken(Objective):
    """The cross-entropy of each next token; batches have `ids` and `targets` (-100: ignored).

    With `streams` the model's memory is carried from one batch to the next, without gradients.
    """

    def __init__(
        self, *, streams: bool = False, bytes_per_token: float | None = None, words_per_token: float | None = None
    ) -> None:
        self.streams, self.bytes_per_token, self.words_per_token = streams, bytes_per_token, words_per_token

    def count(self, batch: Batch) -> int:
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits, carried = self._read(model, batch["ids"], carried)
        total = _nats(logits, batch["targets"])
        extra = model.auxiliary_loss()
        if extra is not None:  # a mean: multiplied by the count to be a sum
            count = self.count(batch)
            return TaskLoss(
                total + extra * count, {"auxiliary": extra.detach() * count, "text": total.detach()}, carried
            )
        return TaskLoss(total, {}, carried)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[LanguageMetrics, Any]:
        logits, carried = self._read(model, batch["ids"], carried)
        nats = float(_nats(logits, batch["targets"]))
        return LanguageMetrics(nats, self.count(batch), self.bytes_per_token, self.words_per_token), carried

    def _read(self, model: Model, ids: Tensor, carried: Any) -> tuple[Tensor, Any]:
        causal = CausalModel.require(model, Language.name)
        if causal.reads_source:
            raise Unsupported(f"the task 'language' gives no source, which {model.name!r} needs")
        return causal.segment_logits(ids, carried) if self.streams else (causal.text_logits(ids), None)


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    wide = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="sum")


class Language(Task):
    """Language modelling on a named set or on your own files: texts, tables of texts, or folders of texts."""

    name = "language"
    starting_model = starting.DECODER
    starting_train = starting.UNLABELLED

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        set: str | None = option(None, "a named data set; see `longspan data list`")
        train: str | None = option(None, "a text file, a table, or a folder of texts, if no set is named")
        held_out: str | None = option(None, "a held-out file; the end of the first unless given")
        test: str | None = option(None, "a test file")
        text: str = option("text", "the column of the text, if the file is a table", column=True)
        encoding: str | None = option(None, "encoding of the files; by their first bytes, or UTF-8, unless given")
        share: float = option(0.1, "share of the text to hold out, if held_out is not given", low=0, high=0.9)
        tokenizer: TokenizerOptions = option(TokenizerOptions, "the tokenizer to learn")
        length: int = option(128, "tokens per block", low=1)
        batch: int = option(16, "blocks per batch", low=1)
        tokens: str | None = option(None, "a folder that `longspan data prepare NAME --out` wrote, instead of texts")
        streams: bool = option(False, "whether rows continue from batch to batch, for models with a memory")

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        if self.options.tokens is not None:
            return self._of_tokens(self.options.tokens, folders, tokenizer)
        texts, held_out = self._texts(folders)
        if tokenizer is None:
            tokenizer = learn(self.options.tokenizer, texts["train"].pieces())
        files: dict[str, TokenFile] = {}
        sizes: dict[str, Sizes] = {}
        for split, content in texts.items():
            sizes[split] = Sizes()
            # The token file of a set of documents keeps where each document begins.
            title = TITLE if self.options.set in READERS else None
            ids = _encoded(content.pieces(title), tokenizer, sizes[split])
            files[split] = write_tokens(folders.work / split, ids, vocabulary=tokenizer.size)
            if not len(files[split]):
                raise InvalidInput(f"{content.path} is empty")
        return self._prepared(files, sizes, tokenizer, folders.seed, held_out)

    def _of_tokens(self, folder: str, folders: DataPaths, given: Tokenizer | None) -> Prepared:
        """From the token files of a folder, of any size."""
        options = self.options
        if options.set is not None or options.train is not None:
            raise InvalidOption("[task] names tokens, a set or files: one of them")
        files, sizes, tokenizer = read_prepared(Path(folder), options.share)
        if given is not None and fingerprint(given) != fingerprint(tokenizer):
            raise InvalidInput(f"{folder} was prepared with another tokenizer than the model's; prepare it again")
        return self._prepared(files, sizes, tokenizer, folders.seed)

    def _prepared(
        self,
        files: Mapping[str, Tokens],
        sizes: Mapping[str, Sizes],
        tokenizer: Tokenizer,
        seed: int,
        held_out: str | None = None,
    ) -> Prepared:
        data = {split: self._data(file, seed, shuffle=split == "train") for split, file in files.items()}
        # The perplexity of a word is not reported for tokens that are characters or bytes.
        in_words = not tokenizer.single_characters
        objectives = {
            split: NextToken(
                streams=self.options.streams,
                bytes_per_token=sizes[split].bytes / len(file) if split in sizes else None,
                words_per_token=sizes[split].words / len(file) if split in sizes and in_words else None,
            )
            for split, file in files.items()
        }
        facts: dict[str, Any] = {f"{split} tokens": len(file) for split, file in files.items()}
        if held_out is not None:
            facts["held out"] = held_out
        return Prepared(
            data["train"],
            data["held_out"],
            objectives["held_out"],
            data.get("test"),
            tokenizer,
            needs={"vocabulary": tokenizer.size},
            facts={**facts, "vocabulary": tokenizer.size},
            objectives=objectives,
        )

    def _data(self, file: Tokens, seed: int, *, shuffle: bool) -> Data:
        if self.options.streams:
            return Streams(file, self.options.length, self.options.batch)
        return TokenBlocks(file, self.options.length, self.options.batch, seed=seed, shuffle=shuffle)

    def _texts(self, folders: DataPaths) -> tuple[dict[str, text_files.Part | RowTexts], str | None]:
        """The text of each split, and what was held out if no file is."""
        options = self.options
        if (options.set is None) == (options.train is None):
            raise InvalidOption("[task] names a set, or a file to train on: one of the two")
        paths: dict[str, Path | None] = {"train": None, "held_out": None, "test": None}
        if options.set is not None:
            paths.update(named_sets.files(options.set, folders.data))
        else:
            given = {"train": options.train, "held_out": options.held_out, "test": options.test}
            paths.update({split: None if name is None else Path(name) for split, name in given.items()})
        parts: dict[str, text_files.Part | RowTexts] = {
            split: RowTexts(path, options.text, options.encoding)
            if options.set is None and is_table(path)
            else text_files.Part(path, encoding=options.encoding)
            for split, path in paths.items()
            if path is not None
        }
        counts = {split: _count(part) for split, part in parts.items() if isinstance(part, RowTexts)}
        if "held_out" in parts:
            return parts, None
        first = parts["train"]
        if isinstance(first, RowTexts):
            count = counts["train"]
            train, held = hold_out_numbers(count, options.share, folders, str(first.path))
            parts["train"] = replace(first, numbers=frozenset(train))
            parts["held_out"] = replace(first, numbers=frozenset(held))
            said = describe(len(held), count, folders.seed)
        else:
            path = first.path
            with text_files.hinting():
                size = sum(map(len, first.pieces()))
            cut = round(size * (1 - options.share))
            if size == 0:
                raise InvalidInput(f"{path} is empty")
            if not 0 < cut < size:
                raise InvalidInput(f"{path} has {size} characters, too few to hold some out")
            parts["train"], parts["held_out"] = replace(first, stop=cut), replace(first, start=cut)
            said = f"the last {size - cut:,} of {size:,} characters"
        return parts, said


def _count(texts: RowTexts) -> int:
    """The number of rows with a text; says how many have none."""
    count, empty = texts.count()
    drop_empty([(row, texts.column) for row in empty], texts.path)
    return count


def _encoded(pieces: Iterator[str], tokenizer: Tokenizer, sizes: Sizes) -> Iterator[list[int]]:
    """The ids of each piece; `sizes` counts bytes and words."""
    for piece in pieces:
        sizes.add(piece)
        yield tokenizer.encode(piece, special=False).ids


__all__ = ["Language", "LanguageMetrics", "NextToken"]
