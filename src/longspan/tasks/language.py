"""Language models: the next token, from all before it in the block or, for models with a memory, in the stream."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.data.base import Batch
from longspan.models.base import Causal, Model
from longspan.models.transformer_xl import TransformerXL
from longspan.nn.loss import IGNORED
from longspan.tasks.base import Figures, Loss, Objective


@dataclass
class TextFigures(Figures):
    """Of a text: nats over tokens, and what they make per word or byte of it."""

    nats: float = 0.0
    tokens: int = 0
    bytes_per_token: float | None = None  # of the text as it was before it was cut into tokens

    def add(self, other: Figures) -> None:
        assert isinstance(other, TextFigures)
        self.nats, self.tokens = self.nats + other.nats, self.tokens + other.tokens

    def result(self) -> dict[str, float]:
        mean = self.nats / max(self.tokens, 1)
        found = {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}
        if self.bytes_per_token:
            found["bits_per_byte"] = mean / math.log(2) / self.bytes_per_token
        return found


class NextToken(Objective):
    """The cross-entropy of each id that follows; batches are `ids` and `targets` (-100: does not count).

    What a model remembers is carried from one batch to the next where `streams` are read: its state is cut off from
    the graph, so that gradients end at the block's beginning.
    """

    def __init__(self, *, streams: bool = False, bytes_per_token: float | None = None) -> None:
        self.streams, self.bytes_per_token = streams, bytes_per_token

    def count(self, batch: Batch) -> int:
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> Loss:
        logits, carried = self._read(model, batch["ids"], carried)
        total = _nats(logits, batch["targets"])
        extra = model.auxiliary_loss()
        if extra is not None:  # a mean already: it is weighted as the batch is
            count = self.count(batch)
            return Loss(total + extra * count, {"auxiliary": extra.detach() * count, "text": total.detach()}, carried)
        return Loss(total, {}, carried)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[TextFigures, Any]:
        logits, carried = self._read(model, batch["ids"], carried)
        nats = float(_nats(logits, batch["targets"]))
        return TextFigures(nats, self.count(batch), self.bytes_per_token), carried

    def _read(self, model: Model, ids: Tensor, carried: Any) -> tuple[Tensor, Any]:
        if not self.streams:
            found = model(ids)
            return (found[0] if isinstance(found, tuple) else found), None
        if isinstance(model, TransformerXL):
            return model(ids, carried)
        assert isinstance(model, Causal)
        state = model.start(len(ids)) if carried is None else carried
        logits, state = model.extend(ids, state)
        return logits, _detached(state)


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    wide = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(wide, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def _detached(state: Any) -> Any:
    return state.detach()


__all__ = ["NextToken", "TextFigures"]
