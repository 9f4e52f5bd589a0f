"""Replaced-token detection (Clark et al. 2020): a generator fills in masked tokens, a discriminator detects them.

A run writes the pair to `RUN/model`, and the discriminator by itself, which is then fine-tuned, to
`RUN/discriminator`: an encoder with a head for detection.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.text.masking import Masking
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput
from longspan.models.base import Detection, Model, ReplacedTokenPair
from longspan.nn.loss import IGNORED
from longspan.tasks import starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, TaskLoss
from longspan.tasks.pretraining import MaskedPretraining


def _paper() -> Masking:
    """The paper's masking: all chosen tokens are masked."""
    return Masking(mask=1.0, random=0.0)


@dataclass
class DetectionMetrics(Metrics):
    """Of the generator over chosen tokens, and of the discriminator over real tokens."""

    weight: float
    nats: float = 0.0
    right: int = 0
    places: int = 0
    detection_nats: float = 0.0
    detected: int = 0  # tokens that were classified correctly
    tokens: int = 0
    found: int = 0  # replaced, and detected
    said: int = 0
    replaced: int = 0

    COUNTS: ClassVar[tuple[str, ...]] = (
        "nats", "right", "places", "detection_nats", "detected", "tokens", "found", "said", "replaced",
    )  # fmt: skip

    def add(self, other: Metrics) -> None:
        assert isinstance(other, DetectionMetrics)
        for name in self.COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def result(self) -> dict[str, float]:
        masked = self.nats / max(self.places, 1)
        detection = self.detection_nats / max(self.tokens, 1)
        return {
            "loss": masked + self.weight * detection,
            "masked_loss": masked,
            "masked_accuracy": self.right / max(self.places, 1),
            "detection_loss": detection,
            "detection_accuracy": self.detected / max(self.tokens, 1),
            "detection_precision": self.found / max(self.said, 1),
            "detection_recall": self.found / max(self.replaced, 1),
            "replaced": self.replaced / max(self.tokens, 1),
        }


class ReplacedTokens(Objective):
    """The generator's mean over chosen tokens, plus `detection_weight` times the discriminator's over real tokens.

    The sum is divided by the number of chosen tokens, so a real token counts as `share` of one: a constant, so that
    micro-batches and processes add up.
    """

    results = ("discriminator",)

    def __init__(self, share: float) -> None:
        self.share = share

    def count(self, batch: Batch) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        pair = ReplacedTokenPair.require(model, Detect.name)
        ids, chosen = _original(batch)
        detection: Detection = pair(ids, batch["ids"], chosen, key_mask=batch["real"], segments=_segments(pair, batch))
        masked, detected = _sums(detection)
        second = pair.detection_weight * self.share * detected
        return TaskLoss(masked + second, {"masked": masked.detach(), "detection": second.detach()})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[DetectionMetrics, Any]:
        pair = ReplacedTokenPair.require(model, Detect.name)
        detection = self._drawn(pair, batch)
        masked_nats, detection_nats = (float(nats) for nats in _sums(detection))
        real = detection.real
        said, labels = (detection.detections > 0)[real], detection.labels[real]
        metrics = DetectionMetrics(
            pair.detection_weight,
            masked_nats,
            int((detection.proposals.argmax(-1) == detection.targets).sum()),
            len(detection.targets),
            detection_nats,
            int((said == labels).sum()),
            len(labels),
            int((said & labels).sum()),
            int(said.sum()),
            int(labels.sum()),
        )
        return metrics, None

    def _drawn(self, model: ReplacedTokenPair, batch: Batch) -> Detection:
        """A pass with a seed of its own for each example, so that metrics do not depend on batches or processes."""
        ids, chosen = _original(batch)
        real, segments = batch["real"], _segments(model, batch)
        proposals = model.propose(batch["ids"], chosen, key_mask=real, segments=segments)
        drawn = []
        for number, rows in zip(batch["number"].tolist(), torch.split(proposals, chosen.sum(1).tolist())):
            drawn.append(model.draw(rows, torch.Generator(proposals.device).manual_seed(number)))
        corrupted = ids.masked_scatter(chosen, torch.cat(drawn).to(ids.dtype))
        detections = model.detect(corrupted, key_mask=real, segments=segments)
        return Detection(proposals, ids[chosen], corrupted, corrupted != ids, detections, real)


def _original(batch: Batch) -> tuple[Tensor, Tensor]:
    chosen = batch["labels"] != IGNORED
    return torch.where(chosen, batch["labels"], batch["ids"]), chosen


def _segments(model: ReplacedTokenPair, batch: Batch) -> Tensor | None:
    return batch["segments"] if model.segment_kinds > 1 else None


def _sums(detection: Detection) -> tuple[Tensor, Tensor]:
    """The generator's cross-entropy and the discriminator's, summed."""
    dtype = torch.promote_types(detection.detections.dtype, torch.float32)
    masked = cross_entropy(detection.proposals.to(dtype), detection.targets, reduction="sum")
    logits, labels = detection.detections.to(dtype)[detection.real], detection.labels.to(dtype)[detection.real]
    return masked, binary_cross_entropy_with_logits(logits, labels, reduction="sum")


class Detect(MaskedPretraining):
    """Replaced-token detection on documents, with a generator and a discriminator such as `electra`."""

    name = "detect"
    starting_model = starting.DISCRIMINATOR

    @dataclass(frozen=True, kw_only=True)
    class Options(MaskedPretraining.Options):
        pairs: str = option("none", "whether a text is one span (none) or two", choices=("none", "next", "order"))
        masking: Masking = option(_paper(), "which tokens are masked for the generator, and how")

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        data, tokenizer = self._data(folders, tokenizer)
        if self.options.masking.random:
            raise InvalidInput("[task.masking] random must be 0: the generator draws the replacements")
        first = data["train"].load(range(min(256, len(data["train"].plan(0)))), 0)
        share = float((first["labels"] != IGNORED).sum() / first["real"].sum())
        if not share:
            raise InvalidInput("no tokens were chosen; raise [task.masking] share")
        needs = {"vocabulary": tokenizer.size, "padding": tokenizer.pad, "mask": tokenizer.mask}
        facts = self._facts(dict(data), tokenizer)
        return Prepared(
            data["train"], data["held_out"], ReplacedTokens(share), data.get("test"), tokenizer, needs, facts
        )


__all__ = ["Detect", "DetectionMetrics", "ReplacedTokens"]
