"""What sampling does to logits (rows, vocabulary), one function for each step; their order is in `Sampling`.

A token that is out has the logit -inf.
"""

import torch
from torch import Tensor

from longspan.decode.rank import among_best

OUT = float("-inf")
FEW = 1024  # most nuclei have fewer tokens, and finding so many is cheaper than sorting all


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Once for each token that was there, however often (Keskar et al. 2019, section 4.1)."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def penalise_counts(logits: Tensor, counts: Tensor, frequency: float, presence: float) -> Tensor:
    """`frequency` for each time that a token was generated, `presence` if it was at all."""
    return logits - frequency * counts - presence * (counts > 0)


def ban(logits: Tensor, banned: Tensor) -> Tensor:
    """Without the banned tokens, except in rows where nothing would be left."""
    left = logits.masked_fill(banned, OUT)
    return torch.where((left > OUT).any(1, keepdim=True), left, logits)


def repeated_ngrams(tokens: Tensor, known: Tensor, size: int, vocabulary: int) -> Tensor:
    """Which next tokens would complete a run of `size` tokens that is there already; `known` (rows,) are lengths."""
    rows, width = tokens.shape
    if width < size:
        return torch.zeros(rows, vocabulary, dtype=torch.bool, device=tokens.device)
    ends = torch.arange(size - 1, width, device=tokens.device)  # where runs that are there end
    fits = ends < known[:, None]
    for back in range(1, size):
        own = tokens.gather(1, (known - back).clamp_min(0)[:, None])  # the end of the text
        fits = fits & (tokens[:, size - 1 - back : width - back] == own)
    found = torch.zeros(rows, vocabulary, dtype=torch.int32, device=tokens.device)
    found.scatter_add_(1, tokens[:, size - 1 :], (fits & (known >= size)[:, None]).int())
    return found > 0


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """The k best."""
    if k >= logits.shape[1]:
        return logits
    falling = logits.topk(k).values
    count = torch.full(falling.shape[:1], k, device=logits.device)
    return logits.masked_fill(~among_best(logits, count, falling), OUT)


def keep_top_p(logits: Tensor, p: float, most: int | None = None) -> Tensor:
    """The fewest best tokens with probability p together; the one that reaches p is kept (Holtzman et al. 2020).

    `most` says how many tokens are left at most, where that is known.
    """
    probabilities = logits.softmax(1)
    falling = _falling(probabilities, p, most)
    before = falling.double().cumsum(1) - falling
    count = (before < p).sum(1).clamp_min(1)
    return logits.masked_fill(~among_best(probabilities, count, falling), OUT)


def _falling(probabilities: Tensor, p: float, most: int | None) -> Tensor:
    """As many of the largest probabilities as are sure to reach p, sorted."""
    width = probabilities.shape[1]
    if most is not None and most < width:
        return probabilities.topk(most).values
    if width > FEW and probabilities.device.type == "cpu":  # elsewhere asking costs more than sorting
        falling = probabilities.topk(FEW).values
        if bool((falling.double().sum(1) >= p).all()):
            return falling
    return probabilities.sort(1, descending=True).values


def keep_min_p(logits: Tensor, share: float) -> Tensor:
    """Tokens whose probability is at least `share` of the best one's."""
    probabilities = logits.softmax(1)
    return logits.masked_fill(probabilities < share * probabilities.amax(1, keepdim=True), OUT)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """A token for each row, by the number `uniform` in [0, 1) that was drawn for it.

    The cumulated probabilities stand in the order of the vocabulary, so that the last digits of the logits, which
    depend on how many rows are multiplied at once, do not decide which of two near tokens comes first.
    """
    total = logits.double().softmax(1).cumsum(1)
    whole = total[:, -1:]
    target = torch.minimum(uniform[:, None] * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return torch.searchsorted(total, target, right=True)[:, 0]


__all__ = [
    "ban",
    "draw",
    "keep_min_p",
    "keep_top_k",
    "keep_top_p",
    "penalise_counts",
    "penalise_repetition",
    "repeated_ngrams",
]
