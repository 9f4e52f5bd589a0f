"""Masked language models, with sentence pairs or without (Devlin et al. 2019, Liu et al. 2019, Lan et al. 2020)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.data.base import Batch
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, Unsupported
from longspan.models.base import CausalModel, Model, TextHeads
from longspan.nn.heads import Head
from longspan.nn.loss import IGNORED
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, TaskLoss, head_output
from longspan.tasks.pretraining import MaskedPretraining, MaskedTexts

HEAD = Head(task="masked", activation="gelu")
PAIR = Head(task="pair", activation="tanh", dropout=0.0)


@dataclass
class MaskedMetrics(Metrics):
    """Loss, perplexity and accuracy of masked tokens, and of pairs."""

    nats: float = 0.0
    right: int = 0
    places: int = 0
    pair_nats: float = 0.0
    pair_right: int = 0
    pairs: int = 0

    def add(self, other: Metrics) -> None:
        assert isinstance(other, MaskedMetrics)
        self.nats, self.right, self.places = (
            self.nats + other.nats,
            self.right + other.right,
            self.places + other.places,
        )
        self.pair_nats, self.pair_right = self.pair_nats + other.pair_nats, self.pair_right + other.pair_right
        self.pairs += other.pairs

    def result(self) -> dict[str, float]:
        masked = self.nats / max(self.places, 1)
        metrics = {
            "loss": masked,
            "masked_loss": masked,
            "masked_perplexity": math.exp(min(masked, 700.0)),
            "masked_accuracy": self.right / max(self.places, 1),
        }
        if self.pairs:
            metrics["pair_loss"] = self.pair_nats / self.pairs
            metrics["pair_accuracy"] = self.pair_right / self.pairs
            metrics["loss"] += metrics["pair_loss"]
        return metrics


class HiddenTokens(Objective):
    """The cross-entropy of what was at the chosen tokens, and of whether the second span follows the first.

    The two means are added. The sum here is divided by the number of chosen tokens, so a pair counts as
    `places_per_text` tokens: a constant, so that micro-batches and processes add up.
    """

    def __init__(self, places_per_text: float) -> None:
        self.places_per_text = places_per_text

    def count(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits, targets, pair = self._read(model, batch)
        total = cross_entropy(_wide(logits), targets, reduction="sum")
        parts = {"masked": total.detach()}
        if pair is not None:
            second = self.places_per_text * _pair_nats(pair, batch)
            total, parts["pair"] = total + second, second.detach()
        extra = model.auxiliary_loss()
        if extra is not None:  # a mean: multiplied by the count to be a sum
            total, parts["auxiliary"] = total + extra * self.count(batch), extra.detach() * self.count(batch)
        return TaskLoss(total, parts)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[MaskedMetrics, Any]:
        logits, targets, pair = self._read(model, batch)
        nats = float(cross_entropy(_wide(logits), targets, reduction="sum"))
        metrics = MaskedMetrics(nats, int((logits.argmax(-1) == targets).sum()), len(targets))
        if pair is not None:
            metrics.pair_nats = float(_pair_nats(pair, batch))
            metrics.pair_right = int((pair.argmax(-1) == batch["pair"]).sum())
            metrics.pairs = int((batch["pair"] != IGNORED).sum())
        return metrics, None

    def _read(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """The logits of the chosen tokens, their targets, and the logits of the pairs."""
        reader = TextHeads.require(model, MaskedLanguage.name)
        if isinstance(reader, CausalModel):
            raise Unsupported(
                f"the task 'masked' needs a model that reads both ways; {model.name!r} reads left to right"
            )
        segments = batch["segments"] if reader.segment_kinds > 1 else None
        chosen = batch["labels"] != IGNORED
        outputs = reader.outputs(batch["ids"], key_mask=batch["real"], segments=segments, chosen=chosen)
        return head_output(reader, outputs, "masked"), batch["labels"][chosen], outputs.get("pair")


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _pair_nats(logits: Tensor, batch: Batch) -> Tensor:
    return cross_entropy(_wide(logits), batch["pair"], ignore_index=IGNORED, reduction="sum")


def places_per_text(data: MaskedTexts, texts: int = 256) -> float:
    """The mean number of chosen tokens per text, over the first texts."""
    count = min(texts, len(data.plan(0)))
    labels = data.load(range(count), 0)["labels"]
    mean = float((labels != IGNORED).sum()) / count
    if not mean:
        raise InvalidInput(f"no tokens were chosen in {count} texts; raise [task.masking] share")
    return mean


class MaskedLanguage(MaskedPretraining):
    """A masked language model on documents, with next-sentence or sentence-order pairs or without."""

    name = "masked"

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        data, tokenizer = self._data(folders, tokenizer)
        paired = self.options.pairs != "none"
        return Prepared(
            data["train"],
            data["held_out"],
            HiddenTokens(places_per_text(data["train"])),
            data.get("test"),
            tokenizer,
            needs={
                "vocabulary": tokenizer.size,
                "padding": tokenizer.pad,
                "tasks": [HEAD, PAIR] if paired else [HEAD],
                **({"segments": 2} if paired else {}),
            },
            facts=self._facts(dict(data), tokenizer),
        )


__all__ = ["HEAD", "PAIR", "HiddenTokens", "MaskedLanguage", "MaskedMetrics", "places_per_text"]
