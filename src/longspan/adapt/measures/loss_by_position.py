"""The loss of the next token by position in the text, of one model or of two on the same texts."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.adapt.measures.intervals import Estimate, paired_bootstrap
from longspan.errors import InvalidInput
from longspan.models.base import CausalModel

BLOCK = 64  # positions
WHOLE = 2048  # tokens up to which a text is read in one pass
LOGITS = 1 << 24  # numbers at a time


@dataclass(frozen=True)
class LossBlock:
    """The mean loss of the tokens `first` to `last`, counted from 0; token 0 has no loss."""

    first: int
    last: int
    original: float | None  # None: the original cannot read that far
    swapped: float
    difference: Estimate | None  # swapped - original, over texts


@dataclass(frozen=True)
class LossComparison:
    """Nats a token of both models on the same texts."""

    texts: int
    length: int
    trained_length: int | None  # of the original
    original: float | None  # the mean over what both can read
    swapped: float
    difference: Estimate | None
    blocks: tuple[LossBlock, ...]


@torch.inference_mode()
def loss_by_position(model: CausalModel, rows: Tensor) -> Tensor:
    """The loss of each token but the first, (texts, length - 1), in nats; its mean is the loss of the texts.

    Long texts are read in chunks, past the trained length if the model's positions allow it.
    """
    if rows.dim() != 2 or rows.shape[1] < 2:
        raise InvalidInput(f"token rows must be (texts, 2 or more tokens), not {tuple(rows.shape)}")
    return torch.cat([_losses(model, part.to(model.device)).cpu() for part in _parts(model, rows)])


def _parts(model: CausalModel, rows: Tensor) -> Iterator[Tensor]:
    return iter(rows.split(max(1, LOGITS // (min(rows.shape[1], WHOLE) * model.vocabulary))))


def _losses(model: CausalModel, ids: Tensor) -> Tensor:
    length = ids.shape[1]
    if length <= WHOLE and (model.max_length is None or length <= model.max_length):
        return _nats(model.text_logits(ids)[:, :-1], ids[:, 1:])
    state, nats = model.start(len(ids)), []
    size = max(BLOCK, min(512, LOGITS // (len(ids) * model.vocabulary)))
    for begin in range(0, length - 1, size):
        targets = ids[:, begin + 1 : begin + 1 + size]
        logits, state = model.extend(ids[:, begin : begin + targets.shape[1]], state, beyond=True)
        nats.append(_nats(logits, targets))
    return torch.cat(nats, 1)


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.float().transpose(1, 2), targets, reduction="none").double()


def readable_length(model: CausalModel) -> int | None:
    """The longest text that it can read at all; None: any."""
    return model.max_length if model.fixed_length else None


def compare_losses(
    original: CausalModel, swapped: CausalModel, rows: Tensor, *, block: int = BLOCK, seed: int = 0
) -> LossComparison:
    """Both models on the same texts; each reads as far as its positions allow."""
    limits = [limit for limit in (readable_length(original), rows.shape[1]) if limit is not None]
    known = min(limits)
    limits = [limit for limit in (readable_length(swapped), rows.shape[1]) if limit is not None]
    rows = rows[:, : min(limits)]
    known = min(known, rows.shape[1])
    after = loss_by_position(swapped, rows)
    before = loss_by_position(original, rows[:, :known])
    blocks = []
    for begin in range(0, rows.shape[1], block):
        tokens = slice(max(begin, 1) - 1, min(begin + block, rows.shape[1]) - 1)
        if tokens.start >= tokens.stop:
            continue
        ours = after[:, tokens].mean(1)
        both = tokens.stop <= before.shape[1]
        exact = before[:, tokens].mean(1) if both else None
        blocks.append(
            LossBlock(
                tokens.start + 1,
                tokens.stop,
                None if exact is None else float(exact.mean()),
                float(ours.mean()),
                None if exact is None else paired_bootstrap(ours - exact, seed=seed),
            )
        )
    shared = after[:, : before.shape[1]].mean(1)
    return LossComparison(
        texts=len(rows),
        length=rows.shape[1],
        trained_length=original.max_length,
        original=float(before.mean()),
        swapped=float(shared.mean()),
        difference=paired_bootstrap(shared - before.mean(1), seed=seed),
        blocks=tuple(blocks),
    )


def joined_rows(rows: Tensor, length: int) -> Tensor | None:
    """The texts joined to fewer, of `length` tokens at least; None if all together are shorter."""
    together = -(-length // rows.shape[1])
    count = len(rows) // together
    return rows[: count * together].reshape(count, -1) if count else None


__all__ = ["BLOCK", "LossBlock", "LossComparison", "compare_losses", "joined_rows", "loss_by_position"]
