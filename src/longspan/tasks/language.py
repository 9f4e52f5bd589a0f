"""Language modelling: the next token, given the block so far or, with a memory, the whole stream so far."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.attention.base import Attention
from longspan.config import option
from longspan.data.base import Batch, Data
from longspan.data.sets import named as named_sets
from longspan.data.sets.prepared_tokens import Sizes, fingerprint, read_prepared
from longspan.data.text import document_files, text_files
from longspan.data.text.blocks import Streams, TokenBlocks, unpack
from longspan.data.text.corpora import READERS, TITLE
from longspan.data.text.document_files import Documents
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

Content = text_files.Part | Documents | RowTexts  # the text of a split


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

    With `streams` the model's memory is carried from one batch to the next, without gradients. If a batch has
    `documents`, each document is read by itself.
    """

    def __init__(
        self, *, streams: bool = False, bytes_per_token: float | None = None, words_per_token: float | None = None
    ) -> None:
        self.streams, self.bytes_per_token, self.words_per_token = streams, bytes_per_token, words_per_token

    def count(self, batch: Batch) -> int:
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits, targets, carried = self._read(model, batch, carried)
        total, outputs = _nats(logits, targets), logits[targets != IGNORED] if self.compared else None
        extra = model.auxiliary_loss()
        if extra is not None:  # a mean: multiplied by the count to be a sum
            count = self.count(batch)
            return TaskLoss(
                total + extra * count, {"auxiliary": extra.detach() * count, "text": total.detach()}, carried, outputs
            )
        return TaskLoss(total, {}, carried, outputs)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[LanguageMetrics, Any]:
        logits, targets, carried = self._read(model, batch, carried)
        nats = float(_nats(logits, targets))
        return LanguageMetrics(nats, self.count(batch), self.bytes_per_token, self.words_per_token), carried

    def _read(self, model: Model, batch: Batch, carried: Any) -> tuple[Tensor, Tensor, Any]:
        """The logits, their targets, and the memory for the next batch."""
        causal = CausalModel.require(model, Language.name)
        if causal.reads_source:
            raise Unsupported(f"the task 'language' gives no source, which {model.name!r} needs")
        if self.streams:
            logits, carried = causal.segment_logits(batch["ids"], carried)
            return logits, batch["targets"], carried
        if "documents" not in batch:
            return causal.text_logits(batch["ids"]), batch["targets"], None
        refuse_padding_readers(causal)
        rows = unpack(batch)
        return causal.text_logits(rows["ids"], key_mask=rows["key_mask"]), rows["targets"], None


def refuse_padding_readers(model: Model) -> None:
    """Refuse mechanisms whose results depend on padding: they cannot read documents of several lengths apart."""
    for mechanism in model.modules():
        if isinstance(mechanism, Attention) and mechanism.padding_counts:
            raise Unsupported(
                f"separate = true pads documents to one length, and {mechanism.name} as released reads padding "
                f"({mechanism.options}); choose another form or mechanism, or leave out separate"
            )


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
        documents: str | None = option(
            None,
            "what a document is: each of the files of a folder, a part between blank lines, a part that begins with "
            "one of the headings, or one of the rows of a table (.jsonl, .csv, .tsv); none: the text is one",
            choices=document_files.KINDS,
        )
        heading: str = option(
            document_files.HEADINGS,
            "documents = headings: a regular expression that matches the whole line (default: `# Title`, `= Title =`)",
        )
        end_token: bool = option(False, "whether an end-of-text token follows each document")
        separate: bool = option(
            False, "whether each document is read by itself: no token reads or predicts across a border"
        )
        stride: int | None = option(
            None,
            "evaluation: tokens between the starts of overlapping blocks, so that each token is predicted from at "
            "least length - stride before it; none: blocks do not overlap",
            low=1,
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.stride is not None and self.stride > self.length:
                raise InvalidOption(f"stride must be at most the length of {self.length}, not {self.stride}")
            if self.streams and (self.stride is not None or self.separate):
                name = "separate" if self.separate else "stride"
                raise InvalidOption(f"streams carry a memory from block to block; leave out {name}, or streams")
            if self.tokens is not None and (self.documents is not None or self.end_token):
                raise InvalidOption(
                    "tokens are prepared already, with the documents of their files; leave out documents and end_token"
                )

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        if self.options.tokens is not None:
            return self._of_tokens(self.options.tokens, folders, tokenizer)
        texts, held_out = self._texts(folders)
        if tokenizer is None:
            tokenizer = learn(self.options.tokenizer, texts["train"].pieces())
        files: dict[str, TokenFile] = {}
        sizes: dict[str, Sizes] = {}
        end = self._end(tokenizer)
        for split, content in texts.items():
            sizes[split] = Sizes()
            # The token file of a set of documents keeps where each document begins.
            title = TITLE if self.options.set in READERS else None
            if isinstance(content, RowTexts) and self._has_documents:
                pieces = content.texts()  # what separates documents is said by options
            else:
                pieces = content.pieces() if isinstance(content, Documents) else content.pieces(title)
            ids = _encoded(pieces, tokenizer, sizes[split], end)
            files[split] = write_tokens(folders.work / split, ids, vocabulary=tokenizer.size)
            if not len(files[split]):
                raise InvalidInput(f"{content.path} is empty")
        return self._prepared(files, sizes, tokenizer, folders.seed, held_out)

    def _end(self, tokenizer: Tokenizer) -> list[int]:
        """What follows each document: the end-of-text token, or nothing."""
        if not self.options.end_token:
            return []
        end = tokenizer.eos if tokenizer.eos is not None else tokenizer.sep
        if end is None:
            raise InvalidOption("end_token needs a tokenizer with special tokens; give tokenizer = { special = true }")
        return [end]

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
        if self._has_documents:
            facts |= {f"{split} documents": len(file.borders) for split, file in files.items()}
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

    @property
    def _has_documents(self) -> bool:
        return self.options.documents is not None or self.options.separate or self.options.end_token

    def _data(self, file: Tokens, seed: int, *, shuffle: bool) -> Data:
        options = self.options
        if options.streams:
            return Streams(file, options.length, options.batch)
        return TokenBlocks(
            file,
            options.length,
            options.batch,
            seed=seed,
            shuffle=shuffle,
            separate=options.separate,
            stride=None if shuffle else options.stride,
        )

    def _texts(self, folders: DataPaths) -> tuple[dict[str, Content], str | None]:
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
        texts = {split: self._content(path) for split, path in paths.items() if path is not None}
        counts = {split: _count(content) for split, content in texts.items() if isinstance(content, RowTexts)}
        if "held_out" in texts:
            return texts, None
        first = texts["train"]
        if not isinstance(first, RowTexts):
            texts["train"], texts["held_out"] = first.split(options.share)
            return texts, f"the last {100 * options.share:g} % of the text"
        train, held = hold_out_numbers(counts["train"], options.share, folders, str(first.path))
        texts["train"] = replace(first, numbers=frozenset(train))
        texts["held_out"] = replace(first, numbers=frozenset(held))
        return texts, describe(len(held), counts["train"], folders.seed)

    def _content(self, path: Path) -> Content:
        """A file or folder, as documents or as one text; each row of a table is a document."""
        options = self.options
        if options.documents not in (None, "rows"):
            return Documents(path, options.documents, options.heading)
        if options.documents == "rows" or (options.set is None and is_table(path)):
            return RowTexts(path, options.text, options.encoding)
        if self._has_documents and options.set not in READERS:  # the file is one document
            return Documents(path, "files")
        return text_files.Part(path, encoding=options.encoding)


def _count(texts: RowTexts) -> int:
    """The number of rows with a text; says how many have none."""
    count, empty = texts.count()
    drop_empty([(row, texts.column) for row in empty], texts.path)
    return count


def _encoded(pieces: Iterator[str], tokenizer: Tokenizer, sizes: Sizes, end: list[int]) -> Iterator[list[int]]:
    """The ids of each piece, followed by `end`; `sizes` counts bytes and words."""
    for piece in pieces:
        sizes.add(piece)
        yield [*tokenizer.encode(piece, special=False).ids, *end]


__all__ = ["Language", "LanguageMetrics", "NextToken"]
