"""Masked language models, with sentence pairs or without (Devlin et al. 2019, Liu et al. 2019, Lan et al. 2020)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import CausalModel, Model, TextHeads
from longspan.nn.heads import Head
from longspan.nn.loss import IGNORED
from longspan.tasks.base import DataPaths, Objective, Prepared, TaskLoss, head_output
from longspan.tasks.masked_metrics import MaskedMetrics, wide
from longspan.tasks.masked_sentences import HiddenSentences, SentenceTexts, tokens_per_sentence
from longspan.tasks.pretraining import MaskedPretraining, MaskedTexts

HEAD = Head(task="masked", activation="gelu")
PAIR = Head(task="pair", activation="tanh", dropout=0.0)


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
        logits, targets, pair = self._read(model, batch, every=self.compared == "all")
        outputs = logits if self.compared else None
        if self.compared == "all":  # of these tokens, some were masked
            chosen = batch["labels"][batch["real"]] != IGNORED
            logits = logits[chosen]
        total = cross_entropy(wide(logits), targets, reduction="sum")
        parts = {"masked": total.detach()}
        if pair is not None:
            second = self.places_per_text * _pair_nats(pair, batch)
            total, parts["pair"] = total + second, second.detach()
        extra = model.auxiliary_loss()
        if extra is not None:  # a mean: multiplied by the count to be a sum
            total, parts["auxiliary"] = total + extra * self.count(batch), extra.detach() * self.count(batch)
        return TaskLoss(total, parts, outputs=outputs)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[MaskedMetrics, Any]:
        logits, targets, pair = self._read(model, batch)
        nats = float(cross_entropy(wide(logits), targets, reduction="sum"))
        metrics = MaskedMetrics(nats, int((logits.argmax(-1) == targets).sum()), len(targets))
        if pair is not None:
            metrics.pair_nats = float(_pair_nats(pair, batch))
            metrics.pair_right = int((pair.argmax(-1) == batch["pair"]).sum())
            metrics.pairs = int((batch["pair"] != IGNORED).sum())
        return metrics, None

    def _read(self, model: Model, batch: Batch, *, every: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
        """The logits of the chosen tokens (or of every real token), the targets, and the logits of the pairs."""
        reader = TextHeads.require(model, MaskedLanguage.name)
        if isinstance(reader, CausalModel):
            raise Unsupported(
                f"the task 'masked' needs a model that reads both ways; {model.name!r} reads left to right"
            )
        segments = batch["segments"] if reader.segment_kinds > 1 else None
        chosen = batch["labels"] != IGNORED
        read = batch["real"] if every else chosen
        outputs = reader.outputs(batch["ids"], key_mask=batch["real"], segments=segments, chosen=read)
        return head_output(reader, outputs, "masked"), batch["labels"][chosen], outputs.get("pair")


def _pair_nats(logits: Tensor, batch: Batch) -> Tensor:
    return cross_entropy(wide(logits), batch["pair"], ignore_index=IGNORED, reduction="sum")


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

    @dataclass(frozen=True, kw_only=True)
    class Options(MaskedPretraining.Options):
        sentence_weight: float = option(
            0.0,
            "weight of predicting masked sentences, for models with a global token per sentence (ETC has 0.2); masked "
            "tokens get the rest",
            low=0,
            below=1,
        )
        hidden_sentences: float = option(
            0.1, "share of sentences that are masked whole, with sentence_weight", above=0, below=1
        )

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        paired = options.pairs != "none"
        if options.sentence_weight and paired:
            raise InvalidOption('sentence_weight is for texts of one span; give pairs = "none"')
        data, tokenizer = self._data(folders, tokenizer)
        return Prepared(
            data["train"],
            data["held_out"],
            self._objective(data["train"]),
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

    def _texts(self, *given: Any, **options: Any) -> MaskedTexts:
        if not self.options.sentence_weight:
            return super()._texts(*given, **options)
        return SentenceTexts(*given, hidden_sentences=self.options.hidden_sentences, **options)

    def _objective(self, data: MaskedTexts) -> Objective:
        places = places_per_text(data)
        if isinstance(data, SentenceTexts):
            return HiddenSentences(self.options.sentence_weight, tokens_per_sentence(data))
        return HiddenTokens(places)


__all__ = ["HEAD", "PAIR", "HiddenTokens", "MaskedLanguage", "places_per_text"]
