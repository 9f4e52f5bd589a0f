"""Denoising (BART, Lewis et al. 2020): an encoder reads a corrupted text, and a decoder writes the original."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.order import draws
from longspan.data.text.corpora import Corpus
from longspan.data.text.noise import Noise
from longspan.data.text.sentence_pairs import Span
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.models.base import EncoderDecoder, Model, shift_right
from longspan.nn.loss import IGNORED
from longspan.tasks import starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, TaskLoss
from longspan.tasks.pretraining import Planned, Pretraining, SpecialTokens


class SpoiledTexts(Planned):
    """Batches: `source` is a corrupted text and `source_mask` its real tokens, `targets` the original (-100: padding),
    and `ids` the decoder's input: the targets shifted right, after the token that ends texts."""

    def __init__(
        self,
        corpus: Corpus,
        length: int,
        batch: int,
        *,
        noise: Noise,
        tokenizer: Tokenizer,
        short: float = 0.0,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        super().__init__(corpus, "none", length, batch, short=short, seed=seed, shuffle=shuffle)
        self.noise, self.around = noise, SpecialTokens.of(tokenizer)
        self.drawn_from = np.setdiff1d(np.arange(tokenizer.size), list(tokenizer.specials.values()))

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        rows = [self._example(number, epoch) for number in numbers]
        source = _table([spoiled for spoiled, _ in rows], self.around.padding)
        real = _table([np.ones(len(spoiled)) for spoiled, _ in rows], 0).bool()
        targets = _table([whole for _, whole in rows], IGNORED)
        ids = shift_right(targets, self.around.end, padding=self.around.padding)
        return {"source": source, "source_mask": real, "ids": ids, "targets": targets}

    def _example(self, number: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        generator = draws(self.seed, epoch, number)
        span, _, _ = self.plan(epoch).at(number)
        borders, around = self.corpus.borders, self.around
        inner = _inside(borders, span)
        whole = self.corpus.tokens[span.start : span.stop].astype(np.int64)
        spoiled = self.noise.apply(
            np.split(whole, inner - span.start), generator, mask=around.mask, drawn_from=self.drawn_from
        )
        # Spans of length 0 may make the corrupted text longer than the original.
        spoiled = spoiled[: self.length - 2]
        return _enclosed(spoiled, around), _enclosed(whole, around)

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}, {self.noise}"


def _inside(borders: np.ndarray, span: Span) -> np.ndarray:
    """Where sentences begin within a span."""
    return borders[np.searchsorted(borders, span.start, side="right") : np.searchsorted(borders, span.stop)]


def _enclosed(ids: np.ndarray, around: SpecialTokens) -> np.ndarray:
    return np.concatenate([[around.begin], ids, [around.end]])


def _table(rows: Sequence[np.ndarray], value: int) -> Tensor:
    table = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return torch.from_numpy(table)


@dataclass
class DenoiseMetrics(Metrics):
    """Of the original text, each token given the previous ones."""

    nats: float = 0.0
    right: int = 0
    tokens: int = 0

    def add(self, other: Metrics) -> None:
        assert isinstance(other, DenoiseMetrics)
        self.nats, self.right = self.nats + other.nats, self.right + other.right
        self.tokens += other.tokens

    def result(self) -> dict[str, float]:
        mean = self.nats / max(self.tokens, 1)
        return {
            "loss": mean,
            "perplexity": math.exp(min(mean, 700.0)),
            "accuracy": self.right / max(self.tokens, 1),
        }


class WholeText(Objective):
    """The cross-entropy of each token of the original text."""

    def count(self, batch: Batch) -> int:
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        total = _nats(self._read(model, batch), batch["targets"])
        extra = model.auxiliary_loss()
        if extra is not None:  # a mean: multiplied by the count to be a sum
            count = self.count(batch)
            return TaskLoss(total + extra * count, {"auxiliary": extra.detach() * count, "text": total.detach()})
        return TaskLoss(total, {})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[DenoiseMetrics, Any]:
        logits = self._read(model, batch)
        right = (logits.argmax(-1) == batch["targets"]).sum()  # no token is -100
        return DenoiseMetrics(float(_nats(logits, batch["targets"])), int(right), self.count(batch)), None

    def _read(self, model: Model, batch: Batch) -> Tensor:
        # The decoder's padding is on the right, where no real token reads it: it needs no mask.
        pair = EncoderDecoder.require(model, Denoise.name)
        logits: Tensor = pair(batch["source"], batch["ids"], source_mask=batch["source_mask"])
        return logits


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    wide = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="sum")


class Denoise(Pretraining):
    """Restoring corrupted texts, with an encoder–decoder."""

    name = "denoise"
    starting_model = starting.TRANSFORMER

    @dataclass(frozen=True, kw_only=True)
    class Options(Pretraining.Options):
        short: float = option(0.0, "share of texts that are shorter, of random length", low=0, high=1)
        noise: Noise = option(Noise, "how texts are corrupted")

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        corpora, tokenizer = self._corpora(folders, tokenizer)
        data = {
            split: SpoiledTexts(
                corpus,
                options.length,
                options.batch,
                noise=options.noise,
                tokenizer=tokenizer,
                short=options.short,
                seed=folders.seed,
                shuffle=split == "train",
            )
            for split, corpus in corpora.items()
        }
        needs = {"vocabulary": tokenizer.size, "padding": tokenizer.pad}
        facts = self._facts(dict(data), tokenizer)
        return Prepared(data["train"], data["held_out"], WholeText(), data.get("test"), tokenizer, needs, facts)


__all__ = ["Denoise", "DenoiseMetrics", "SpoiledTexts", "WholeText"]
