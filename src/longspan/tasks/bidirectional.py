"""Bidirectional language modelling (Peters et al. 2018): each word from those before it, and from those after it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.text.corpora import read_documents
from longspan.data.text.word_sentences import WordSentences, WordTypes, count_words, split_sentences
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput
from longspan.models.base import Model
from longspan.models.word_base import BidirectionalModel
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss


@dataclass
class DirectionMetrics(Metrics):
    """Loss and perplexity per word of both directions."""

    forward: float = 0.0
    backward: float = 0.0
    targets: int = 0

    def add(self, other: Metrics) -> None:
        assert isinstance(other, DirectionMetrics)
        self.forward += other.forward
        self.backward += other.backward
        self.targets += other.targets

    def result(self) -> dict[str, float]:
        forward, backward = (nats / max(self.targets, 1) for nats in (self.forward, self.backward))
        return {
            "loss": (forward + backward) / 2,
            "bits_per_word": (forward + backward) / 2 / math.log(2),
            "forward_perplexity": math.exp(min(forward, 700.0)),
            "backward_perplexity": math.exp(min(backward, 700.0)),
        }


class BothDirections(Objective):
    """The cross-entropy of each word in both directions, over twice as many predictions as a direction has."""

    unit = "words"

    def count(self, batch: Batch) -> int:
        return 2 * int((batch["mask"].sum(1) - 1).clamp_min(0).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        reader = BidirectionalModel.require(model, Bidirectional.name)
        losses = reader.loss(batch["characters"], batch["ids"], key_mask=batch["mask"])
        parts = {"forward": 2 * losses.forward.detach(), "backward": 2 * losses.backward.detach()}
        return TaskLoss(losses.forward + losses.backward, parts)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[DirectionMetrics, Any]:
        reader = BidirectionalModel.require(model, Bidirectional.name)
        losses = reader.loss(batch["characters"], batch["ids"], key_mask=batch["mask"])
        return DirectionMetrics(float(losses.forward), float(losses.backward), losses.targets), None


class Bidirectional(Task):
    """Sentences of words, split at spaces; the model reads their characters and predicts words, in both directions."""

    name = "bidirectional"

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        set: str | None = option(None, "a named data set of documents; see `longspan data list`")
        train: str | None = option(None, "a text file with a sentence per line and empty lines between documents")
        held_out: str | None = option(None, "a held-out file; the last documents of the first unless given")
        test: str | None = option(None, "a test file")
        share: float = option(0.1, "share of the documents to hold out, if held_out is not given", low=0, high=0.9)
        vocabulary: int = option(20_000, "most words to predict, by frequency; others are <UNK>", low=4)
        min_count: int = option(2, "words seen less often are predicted as <UNK>", low=1)
        characters: int = option(50, "characters of a word, with its two marks; longer words are cut", low=3)
        length: int = option(60, "most words of a row; longer sentences are cut", low=1)
        batch: int = option(32, "sentences per batch", low=1)

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options, types = self.options, WordTypes()
        files = {"train": options.train, "held_out": options.held_out, "test": options.test}
        documents = read_documents(options.set, files, folders.data, options.share)
        vocabulary = count_words(
            split_sentences(documents["train"](), options.length), options.vocabulary, options.min_count
        )
        rows = {
            split: [types.number(words) for words in split_sentences(read(), options.length)]
            for split, read in documents.items()
        }
        for split, sentences in rows.items():
            if not sentences:
                raise InvalidInput(f"the {split} text has no words")
        characters, targets = types.characters(options.characters), types.targets(vocabulary)
        data = {
            split: WordSentences(
                sentences,
                characters,
                targets,
                options.batch,
                seed=folders.seed,
                shuffle=split == "train",
            )
            for split, sentences in rows.items()
        }
        unigram, unknown = _unigram(rows["train"], rows["held_out"], targets.numpy(), len(vocabulary))
        facts = {
            **{f"{split} words": sum(len(row) - 2 for row in sentences) for split, sentences in rows.items()},
            "vocabulary": len(vocabulary),
            "unknown": f"{100 * unknown:.1f} %",
            "baselines": {"words by frequency": {"loss": unigram, "perplexity": math.exp(unigram)}},
        }
        return Prepared(
            data["train"],
            data["held_out"],
            BothDirections(),
            data.get("test"),
            # The model reads bytes: its texts need no vocabulary.
            tokenizer or learn(TokenizerOptions(kind="bytes", special=False), ["bytes"]),
            needs={"vocabulary": len(vocabulary), "characters": options.characters},
            facts=facts,
            words=vocabulary,
        )


def _unigram(
    train: Sequence[np.ndarray], held_out: Sequence[np.ndarray], targets: np.ndarray, size: int
) -> tuple[float, float]:
    """The loss of words predicted by their frequency (one added to each count), and the share of unknown words."""
    counts, held = (
        np.bincount(targets[np.concatenate([row[1:] for row in rows])], minlength=size) for rows in (train, held_out)
    )
    logs = np.log((counts + 1) / (counts.sum() + size))
    return float(-(held * logs).sum() / held.sum()), float(held[2] / held.sum())


__all__ = ["Bidirectional", "BothDirections", "DirectionMetrics"]
