"""ETC's pre-training: masked tokens, and contrastive predictive coding of masked sentences (Ainslie et al. 2020).

A share of the sentences of each text is masked whole; their global tokens stay. A second pass reads each of these
sentences alone. The state of its global token there must be distinguished from those of the batch's other masked
sentences, by the state of its global token in the masked text: a softmax over their dot products, divided by √width
(noise-contrastive estimation; the paper does not give its scores). The tokens of the other sentences are masked as for
BERT. The loss is 0.8 of the mean over masked tokens and 0.2 of the mean over masked sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.data.base import Batch
from longspan.data.order import draws
from longspan.data.text import sentence_pairs
from longspan.data.text.masking import choose, hide
from longspan.models.base import Model, SentenceHeads
from longspan.nn.loss import IGNORED
from longspan.tasks.base import Metrics, Objective, TaskLoss, head_output
from longspan.tasks.masked_metrics import MaskedMetrics, wide
from longspan.tasks.pretraining import MaskedTexts

NO_SENTENCE = -1


class SentenceTexts(MaskedTexts):
    """Masked texts of several sentences, some of which are masked whole.

    Batches have also `sentences`, the sentence of each token from 0 on (-1: padding), and for each of the sentences
    that are masked whole its text `hidden_row`, its number `hidden_sentence`, and its tokens `alone_ids` and
    `alone_real`, between the begin and the end token.
    """

    def __init__(self, *given: Any, hidden_sentences: float, **options: Any) -> None:
        super().__init__(*given, **options)
        self.hidden_sentences = hidden_sentences

    def _example(self, number: int, epoch: int) -> dict[str, Any]:
        generator = draws(self.seed, self.visit(epoch), number)
        span, second, _ = self.plan(epoch).at(number)
        span, _ = sentence_pairs.cut(span, second, self.length - 2, generator)
        around, corpus = self.around, self.corpus
        tokens = np.asarray(corpus.tokens[span.start : span.stop], dtype=np.int64)
        ids = np.concatenate([[around.begin], tokens, [around.end]])
        starts = np.concatenate([[1], corpus.begins[span.start : span.stop], [1]]).astype(bool)
        starts[1] = True  # a cut may split a word
        words = starts.cumsum()
        sentences = np.searchsorted(corpus.borders, np.arange(span.start, span.stop), side="right")
        sentences -= sentences[0]
        sentences = np.concatenate([[0], sentences, sentences[-1:]])
        whole = self._masked_whole(int(sentences[-1]) + 1, generator)
        inside = np.ones(len(ids), dtype=bool)
        inside[[0, -1]] = False
        in_hidden = inside & np.isin(sentences, whole)
        chosen = choose(inside & ~in_hidden, words, self.masking, generator)
        text = hide(ids, chosen, words, self.masking, generator, mask=around.mask, drawn_from=self.drawn_from)
        text[in_hidden] = around.mask
        return {
            "ids": text,
            "labels": np.where(chosen, ids, IGNORED),
            "real": np.ones(len(ids), dtype=np.int64),
            "segments": np.zeros(len(ids), dtype=np.int64),
            "pair": IGNORED,
            "sentences": sentences,
            "hidden": whole,
            "alone": [
                np.concatenate([[around.begin], ids[inside & (sentences == sentence)], [around.end]])
                for sentence in whole
            ],
        }

    def _masked_whole(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """The sentences that are masked whole: the share in the mean, and never all of them."""
        wanted = min(int(count * self.hidden_sentences + generator.random()), count - 1)
        return np.sort(generator.permutation(count)[:wanted])

    def _batch(self, rows: Sequence[dict[str, Any]], numbers: Sequence[int]) -> dict[str, Any]:
        batch = super()._batch(rows, numbers)
        sentences = np.full(tuple(batch["ids"].shape), NO_SENTENCE, dtype=np.int64)
        for index, row in enumerate(rows):
            sentences[index, : len(row["sentences"])] = row["sentences"]
        alone = [text for row in rows for text in row["alone"]]
        table = np.full((len(alone), max(map(len, alone), default=0)), self.around.padding, dtype=np.int64)
        for index, text in enumerate(alone):
            table[index, : len(text)] = text
        lengths = torch.tensor([len(text) for text in alone], dtype=torch.long)
        return {
            **batch,
            "sentences": torch.from_numpy(sentences),
            "hidden_row": torch.tensor(
                [row for row, each in enumerate(rows) for _ in each["hidden"]], dtype=torch.long
            ),
            "hidden_sentence": torch.tensor(
                [int(number) for row in rows for number in row["hidden"]], dtype=torch.long
            ),
            "alone_ids": torch.from_numpy(table),
            "alone_real": torch.arange(table.shape[1]) < lengths[:, None],
        }

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}, {self.hidden_sentences:g} of the sentences masked"


@dataclass
class SentenceMetrics(MaskedMetrics):
    """Those of masked tokens, and of masked sentences: loss and accuracy among the masked sentences of a batch."""

    sentence_nats: float = 0.0
    sentence_right: int = 0
    sentences: int = 0
    weight: float = 0.2

    def add(self, other: Metrics) -> None:
        super().add(other)
        assert isinstance(other, SentenceMetrics)
        self.sentence_nats += other.sentence_nats
        self.sentence_right += other.sentence_right
        self.sentences += other.sentences

    def result(self) -> dict[str, float]:
        metrics = super().result()
        count = max(self.sentences, 1)
        metrics["sentence_loss"] = self.sentence_nats / count
        metrics["sentence_accuracy"] = self.sentence_right / count
        metrics["loss"] = (1 - self.weight) * metrics["masked_loss"] + self.weight * metrics["sentence_loss"]
        return metrics


class HiddenSentences(Objective):
    """The weighted sum of the mean losses of masked tokens and of masked sentences.

    The sum here is divided by the number of masked tokens, so a sentence counts as `tokens_per_sentence` of them: a
    constant, so that micro-batches and processes add up.
    """

    def __init__(self, weight: float, tokens_per_sentence: float) -> None:
        self.weight, self.tokens_per_sentence = weight, tokens_per_sentence

    def count(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits, targets, scores = self._read(model, batch)
        tokens = cross_entropy(wide(logits), targets, reduction="sum")
        sentences = self.tokens_per_sentence * _sentence_nats(scores)
        parts = {"masked": tokens.detach(), "sentence": sentences.detach()}
        return TaskLoss((1 - self.weight) * tokens + self.weight * sentences, parts)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[SentenceMetrics, Any]:
        logits, targets, scores = self._read(model, batch)
        right = int((scores.argmax(1) == torch.arange(len(scores), device=scores.device)).sum()) if len(scores) else 0
        metrics = SentenceMetrics(
            float(cross_entropy(wide(logits), targets, reduction="sum")),
            int((logits.argmax(-1) == targets).sum()),
            len(targets),
            sentence_nats=float(_sentence_nats(scores)),
            sentence_right=right,
            sentences=len(scores),
            weight=self.weight,
        )
        return metrics, None

    def _read(self, model: Model, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of the masked tokens, their targets, and the score of each masked sentence with each text."""
        reader = SentenceHeads.require(model, "masked")
        states = reader.read_sentences(batch["ids"], key_mask=batch["real"], sentences=batch["sentences"])
        chosen = batch["labels"] != IGNORED
        logits = head_output(reader, reader.read_heads(states, chosen), "masked")
        # Sentences beyond the model's global tokens share the last one.
        numbers = batch["hidden_sentence"].clamp_max(states.sentences.shape[1] - 1)
        context = states.sentences[batch["hidden_row"], numbers]
        if not len(context):
            return logits, batch["labels"][chosen], context.new_zeros(0, 0)
        alone = reader.read_sentences(
            batch["alone_ids"], key_mask=batch["alone_real"], sentences=torch.zeros_like(batch["alone_ids"])
        ).sentences[:, 0]
        return logits, batch["labels"][chosen], context @ alone.mT * context.shape[1] ** -0.5


def _sentence_nats(scores: Tensor) -> Tensor:
    if not len(scores):
        return scores.sum()
    return cross_entropy(wide(scores), torch.arange(len(scores), device=scores.device), reduction="sum")


def tokens_per_sentence(data: SentenceTexts, texts: int = 256) -> float:
    """Masked tokens for each masked sentence, over the first texts."""
    batch = data.load(range(min(texts, len(data.plan(0)))), 0)
    return float((batch["labels"] != IGNORED).sum()) / max(1, len(batch["hidden_row"]))


__all__ = ["HiddenSentences", "SentenceMetrics", "SentenceTexts", "tokens_per_sentence"]
