"""Encoders: how near the sentence vectors and the guesses of masked tokens are to the original's."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from longspan.adapt.measures.intervals import Estimate, paired_bootstrap, wilson
from longspan.adapt.measures.loss_by_position import joined_rows
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.embed import read_states
from longspan.hub.use.texts import longest_text
from longspan.models.base import Model, TextHeads
from longspan.nn.heads import pool

MASKED = 0.15  # of the tokens, as in BERT
TIMES = (1, 4)  # lengths, in lengths of the given texts
SAME, PARTS = "the original", "the mean of the original's vectors of the parts"


@dataclass(frozen=True)
class MaskedAgreement:
    """Masked tokens at which both models' best guesses agree, and at which each is right."""

    count: int
    agree: float
    low: float  # Wilson's interval of 95 %
    high: float
    original: float  # accuracy
    swapped: float


@dataclass(frozen=True)
class EncoderPoint:
    """The comparison at one length."""

    times: int
    length: int
    texts: int
    against: str
    cosine: Estimate | None  # mean over texts; None: not measured
    least: float | None
    masked: MaskedAgreement | None
    note: str = ""


@torch.inference_mode()
def compare_encoders(
    original: Pretrained,
    swapped: Pretrained,
    rows: Tensor,
    *,
    seed: int = 0,
    progress: Callable[[str], None] = lambda what: None,
) -> tuple[EncoderPoint, ...]:
    """Both encoders at the length of the rows, and at four times that length.

    Where the original cannot read the longer text, its vectors of the parts are averaged; masked tokens are then left
    out.
    """
    rows = rows[:, : longest_text(original)]  # None: all
    points = []
    for times in TIMES:
        progress(f"sentence vectors at {times} times the length")
        longer = joined_rows(rows, times * rows.shape[1])
        if longer is None:
            points.append(
                _missing(times, times * rows.shape[1], f"needs {times} texts or more, and {len(rows)} are given")
            )
            continue
        limit = longest_text(swapped)
        if limit is not None and longer.shape[1] > limit:
            points.append(_missing(times, longer.shape[1], f"the swapped model reads {limit} tokens at most"))
            continue
        points.append(_point(original, swapped, longer, times, seed))
    return tuple(points)


def _missing(times: int, length: int, why: str) -> EncoderPoint:
    return EncoderPoint(times, length, 0, SAME, None, None, None, why)


def _point(original: Pretrained, swapped: Pretrained, rows: Tensor, times: int, seed: int) -> EncoderPoint:
    limit = longest_text(original)
    whole = limit is None or rows.shape[1] <= limit
    ours = _vectors(swapped, rows)
    if whole:
        exact = _vectors(original, rows)
    else:
        parts = _vectors(original, rows.reshape(len(rows) * times, -1))
        exact = parts.view(len(rows), times, -1).mean(1)
    cosines = cosine_similarity(ours.double(), exact.double(), dim=-1)
    masked = _masked(original, swapped, rows, seed) if whole else None
    return EncoderPoint(
        times,
        rows.shape[1],
        len(rows),
        SAME if whole else PARTS,
        paired_bootstrap(cosines, seed=seed),
        float(cosines.min()),
        masked,
    )


def _vectors(pretrained: Pretrained, rows: Tensor) -> Tensor:
    """The vector of each text, pooled as the folder says, or their mean."""
    how = "mean" if pretrained.sentence is None else pretrained.sentence.pool
    vectors = []
    for row in rows:
        ids = row[None].to(pretrained.model.device)
        states = read_states(pretrained.model, ids, torch.ones_like(ids, dtype=torch.bool), [-1])[0]
        vectors.append(pool(states.float(), None, how).cpu())
    return torch.cat(vectors)


def _masked(original: Pretrained, swapped: Pretrained, rows: Tensor, seed: int) -> MaskedAgreement | None:
    tokenizer = original.tokenizer
    if tokenizer is None or tokenizer.mask is None or not (_fills(original.model) and _fills(swapped.model)):
        return None
    special = torch.tensor(sorted(tokenizer.specials.values()))
    draws = torch.rand(rows.shape, generator=torch.Generator().manual_seed(seed))
    chosen = (draws < MASKED) & ~torch.isin(rows, special)
    hidden = rows.masked_fill(chosen, tokenizer.mask)
    guesses = [_guesses(each.model, hidden, chosen) for each in (original, swapped)]
    count, right = int(chosen.sum()), rows[chosen]
    if not count:
        return None
    agree = int((guesses[0] == guesses[1]).sum())
    accuracies = [float((guess == right).double().mean()) for guess in guesses]
    return MaskedAgreement(count, agree / count, *wilson(agree, count), *accuracies)


def _fills(model: Model) -> bool:
    return isinstance(model, TextHeads) and "masked" in model.heads


def _guesses(model: Model, hidden: Tensor, chosen: Tensor) -> Tensor:
    assert isinstance(model, TextHeads)
    guesses = [
        model.outputs(ids[None].to(model.device), chosen=mask[None].to(model.device))["masked"].argmax(-1).cpu()
        for ids, mask in zip(hidden, chosen)
        if bool(mask.any())
    ]
    return torch.cat(guesses) if guesses else torch.zeros(0, dtype=torch.long)


__all__ = ["EncoderPoint", "MaskedAgreement", "compare_encoders"]
