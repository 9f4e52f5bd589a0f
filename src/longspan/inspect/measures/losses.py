"""The loss that an ablation raises: the model's own, one number for each row of the passages."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from longspan.errors import Unsupported
from longspan.inspect.measures.subject import Passages, Subject
from longspan.models.base import CausalModel, EncoderDecoder, TextHeads, TextStates
from longspan.nn.heads import pool
from longspan.tasks.masked_metrics import wide

MASKED = 0.15  # of the tokens, as in BERT
SCALE = 20.0  # of cosines, as sentence-transformers trains
HALF = 40  # tokens; longer passages seldom keep to one subject


@dataclass(frozen=True)
class RowLosses:
    """`compute()` gives the loss of each row; it takes gradients if they are enabled."""

    name: str
    compute: Callable[[], Tensor]
    chance: float  # the loss of a guess

    def mean(self) -> float:
        with torch.no_grad():
            return float(self.compute().mean())


def row_losses(subject: Subject) -> RowLosses:
    """The loss that fits the model: next token, masked token, or the continuation of a passage."""
    model, passages = subject.model, subject.passages
    if isinstance(model, CausalModel):
        name = "loss of the next token of the target" if isinstance(model, EncoderDecoder) else "loss of the next token"
        return RowLosses(name, lambda: _next_token(subject, passages), math.log(model.vocabulary))
    if isinstance(model, TextHeads) and "masked" in model.heads:
        return _masked(subject, model)
    if subject.pretrained.sentence is not None and isinstance(model, TextStates):
        return _pairs(subject, model)
    raise Unsupported(
        f"this {model.name} has no loss: no head for next or masked tokens, and no sentence vectors; "
        "load it with its language-model head"
    )


def _next_token(subject: Subject, passages: Passages) -> Tensor:
    ids = passages.ids if passages.targets is None else passages.targets
    logits = subject.run(passages)
    nats = cross_entropy(wide(logits[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
    return nats.mean(1)


def _masked(subject: Subject, model: TextHeads) -> RowLosses:
    """A fixed draw of masked tokens, all replaced by the mask token."""
    ids, mask = subject.passages.ids, subject.tokenizer.mask
    if mask is None:
        raise Unsupported("the tokenizer has no mask token, so masked tokens cannot be predicted")
    special = torch.stack(list(subject.special(ids).values())).any(0) if subject.special(ids) else ids < 0
    draws = torch.rand(ids.shape, generator=torch.Generator().manual_seed(subject.seed)).to(ids.device)
    draws = draws.masked_fill(special, 2.0)
    count = max(1, round(MASKED * int((~special).sum(1).min())))
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    chosen.scatter_(1, draws.topk(count, largest=False).indices, True)
    hidden = ids.masked_fill(chosen, mask)

    def compute() -> Tensor:
        logits = model.outputs(hidden, chosen=chosen)["masked"]
        return cross_entropy(wide(logits), ids[chosen], reduction="none").view(len(ids), count).mean(1)

    return RowLosses("loss of masked tokens", compute, math.log(model.token_rows or subject.tokenizer.size))


def _pairs(subject: Subject, model: TextStates) -> RowLosses:
    """Which continuation belongs to a beginning, among all passages, by the cosine of sentence vectors."""
    ids, sentence = subject.passages.ids, subject.pretrained.sentence
    assert sentence is not None
    first, last = len(subject.before), ids.shape[1] - len(subject.after)
    size = min((last - first) // 2, HALF)
    halves = [(first, first + size), (first + size, first + 2 * size)]
    rows = torch.cat([torch.cat([ids[:, :first], ids[:, a:b], ids[:, last:]], 1) for a, b in halves])
    how, count = sentence.pool, len(ids)

    def compute() -> Tensor:
        vectors = normalize(wide(pool(model.text_states(rows), None, how)), dim=-1)
        scores = SCALE * vectors[:count] @ vectors[count:].T
        own = torch.arange(count, device=scores.device)
        return (cross_entropy(scores, own, reduction="none") + cross_entropy(scores.T, own, reduction="none")) / 2

    return RowLosses(f"loss of finding the continuation among {count} passages", compute, math.log(count))


__all__ = ["RowLosses", "row_losses"]
