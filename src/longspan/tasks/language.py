"""Language models: the next token, from all before it in the block or, for models with a memory, in the stream."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from longspan.data.text.token_files import TokenFile, Tokens, write_tokens
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import CausalModel, Model
from longspan.models.transformer_xl import TransformerXL
from longspan.nn.loss import IGNORED
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss


@dataclass
class LanguageMetrics(Metrics):
    """Of a text: nats over tokens, and what they make per word or byte of it."""

    nats: float = 0.0
    tokens: int = 0
    bytes_per_token: float | None = None  # of the text as it was before it was cut into tokens
    words_per_token: float | None = None  # between spaces, the end of a line being one, as WikiText counts them

    def add(self, other: Metrics) -> None:
        assert isinstance(other, LanguageMetrics)
        self.nats, self.tokens = self.nats + other.nats, self.tokens + other.tokens

    def result(self) -> dict[str, float]:
        mean = self.nats / max(self.tokens, 1)
        found = {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}
        if self.bytes_per_token:
            found["bits_per_byte"] = mean / math.log(2) / self.bytes_per_token
        if self.words_per_token:
            found["word_perplexity"] = math.exp(min(mean / self.words_per_token, 700.0))
        return found


class NextToken(Objective):
    """The cross-entropy of each id that follows; batches are `ids` and `targets` (-100: does not count).

    What a model remembers is carried from one batch to the next where `streams` are read: its state is cut off from
    the graph, so that gradients end at the block's beginning.
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
        if extra is not None:  # a mean already: it is weighted as the batch is
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
        if not self.streams:
            found = model(ids)
            return (found[0] if isinstance(found, tuple) else found), None
        if isinstance(model, TransformerXL):
            return model(ids, carried)
        assert isinstance(model, CausalModel)
        state = model.start(len(ids)) if carried is None else carried
        logits, state = model.extend(ids, state)
        return logits, state.detach()


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    wide = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="sum")


class Language(Task):
    """Language modelling on a named set or on files of one's own."""

    name = "language"

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        set: str | None = option(None, "a named set; `longspan data list` has them")
        train: str | None = option(None, "a file of text, where no set is named")
        held_out: str | None = option(None, "another file; the end of the first unless given")
        test: str | None = option(None, "a third file")
        share: float = option(0.1, "of the text that is held out, where it has no file of its own", low=0, high=0.9)
        tokenizer: TokenizerOptions = option(TokenizerOptions, "how text is cut into tokens")
        length: int = option(128, "tokens of a block", low=1)
        batch: int = option(16, "blocks of a batch", low=1)
        tokens: str | None = option(None, "a folder that `longspan data prepare NAME --out` made, instead of texts")
        streams: bool = option(False, "whether rows go on from batch to batch, for models with a memory")

    def prepare(self, place: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        if self.options.tokens is not None:
            return self._of_tokens(place, tokenizer)
        found = self._texts(place)
        if tokenizer is None:
            tokenizer = learn(self.options.tokenizer, found["train"].pieces())
        files: dict[str, TokenFile] = {}
        sizes: dict[str, Sizes] = {}
        for split, content in found.items():
            sizes[split] = Sizes()
            # Of a set of documents, the token file keeps where each begins.
            title = TITLE if self.options.set in READERS else None
            ids = _encoded(content.pieces(title), tokenizer, sizes[split])
            files[split] = write_tokens(place.work / split, ids, vocabulary=tokenizer.size)
            if not len(files[split]):
                raise InvalidInput(f"{content.path} is empty")
        return self._prepared(files, sizes, tokenizer, place.seed)

    def _of_tokens(self, place: DataPaths, given: Tokenizer | None) -> Prepared:
        """From token files, of any size."""
        options = self.options
        if options.set is not None or options.train is not None:
            raise InvalidOption("[task] names tokens, a set or files: one of them")
        files, sizes, tokenizer = read_prepared(Path(options.tokens), options.share)
        if given is not None and fingerprint(given) != fingerprint(tokenizer):
            raise InvalidInput(f"{options.tokens} was made with another tokenizer than the model's; prepare it by that")
        return self._prepared(files, sizes, tokenizer, place.seed)

    def _prepared(
        self, files: Mapping[str, Tokens], sizes: Mapping[str, Sizes], tokenizer: Tokenizer, seed: int
    ) -> Prepared:
        made = {split: self._data(file, seed, shuffle=split == "train") for split, file in files.items()}
        # Of a text that is cut into characters or bytes, nobody asks for the perplexity of a word.
        in_words = not tokenizer.single_characters
        objectives = {
            split: NextToken(
                streams=self.options.streams,
                bytes_per_token=sizes[split].bytes / len(file) if split in sizes else None,
                words_per_token=sizes[split].words / len(file) if split in sizes and in_words else None,
            )
            for split, file in files.items()
        }
        facts = {f"{split} tokens": len(file) for split, file in files.items()}
        return Prepared(
            made["train"],
            made["held_out"],
            objectives["held_out"],
            made.get("test"),
            tokenizer,
            needs={"vocabulary": tokenizer.size},
            facts={**facts, "vocabulary": tokenizer.size},
            objectives=objectives,
        )

    def _data(self, file: Tokens, seed: int, *, shuffle: bool) -> Data:
        if self.options.streams:
            return Streams(file, self.options.length, self.options.batch)
        return TokenBlocks(file, self.options.length, self.options.batch, seed=seed, shuffle=shuffle)

    def _texts(self, place: DataPaths) -> dict[str, text_files.Part]:
        """The text of each split."""
        options = self.options
        if (options.set is None) == (options.train is None):
            raise InvalidOption("[task] names a set, or a file to train on: one of the two")
        paths: dict[str, Path | None] = {"train": None, "held_out": None, "test": None}
        if options.set is not None:
            paths.update(named_sets.files(options.set, place.data))
        else:
            given = {"train": options.train, "held_out": options.held_out, "test": options.test}
            paths.update({split: None if name is None else Path(name) for split, name in given.items()})
        found = {split: text_files.Part(path) for split, path in paths.items() if path is not None}
        if "held_out" not in found:
            path = found["train"].path
            size = sum(map(len, found["train"].pieces()))
            cut = round(size * (1 - options.share))
            if size == 0:
                raise InvalidInput(f"{path} is empty")
            if not 0 < cut < size:
                raise InvalidInput(f"{path} has {size} characters, too few to hold some out")
            found["train"], found["held_out"] = text_files.Part(path, 0, cut), text_files.Part(path, cut)
        return found


def _encoded(pieces: Iterator[str], tokenizer: Tokenizer, sizes: Sizes) -> Iterator[list[int]]:
    """The ids of each piece; `sizes` adds up."""
    for piece in pieces:
        sizes.add(piece)
        yield tokenizer.encode(piece, special=False).ids


__all__ = ["Language", "LanguageMetrics", "NextToken"]
