"""Transformations of logits (rows, vocabulary) for sampling; `Sampling` documents their order.

A removed token has the logit -inf.
"""

import torch
from torch import Tensor

from longspan.decode.top_values import among_top

REMOVED = float("-inf")
FEW = 1024  # most nuclei have fewer tokens, and top-k of this many is cheaper than a full sort


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Penalises each token that occurred, once however often it did (Keskar et al. 2019, section 4.1)."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def penalise_counts(logits: Tensor, counts: Tensor, frequency: float, presence: float) -> Tensor:
    """Subtracts `frequency` for each time that a token was generated, and `presence` if it was at all."""
    return logits - frequency * counts - presence * (counts > 0)


def ban(logits: Tensor, banned: Tensor) -> Tensor:
    """Removes the banned tokens, except in rows where none would be left."""
    left = logits.masked_fill(banned, REMOVED)
    return torch.where((left > REMOVED).any(1, keepdim=True), left, logits)


def repeated_ngrams(tokens: Tensor, known: Tensor, size: int, vocabulary: int) -> Tensor:
    """Which next tokens would repeat an n-gram of `size` tokens; `known` (rows,) are the lengths."""
    rows, width = tokens.shape
    if width < size:
        return torch.zeros(rows, vocabulary, dtype=torch.bool, device=tokens.device)
    ends = torch.arange(size - 1, width, device=tokens.device)  # where existing n-grams end
    fits = ends < known[:, None]
    for back in range(1, size):
        suffix = tokens.gather(1, (known - back).clamp_min(0)[:, None])  # the end of the text
        fits = fits & (tokens[:, size - 1 - back : width - back] == suffix)
    counts = torch.zeros(rows, vocabulary, dtype=torch.int32, device=tokens.device)
    counts.scatter_add_(1, tokens[:, size - 1 :], (fits & (known >= size)[:, None]).int())
    return counts > 0


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Keeps the k best tokens."""
    if k >= logits.shape[1]:
        return logits
    falling = logits.topk(k).values
    count = torch.full(falling.shape[:1], k, device=logits.device)
    return logits.masked_fill(~among_top(logits, count, falling), REMOVED)


def keep_top_p(logits: Tensor, p: float, most: int | None = None) -> Tensor:
    """Keeps the fewest best tokens whose probabilities sum to at least p (Holtzman et al. 2020).

    `most` is an upper bound of the number of tokens left, if known.
    """
    probabilities = logits.softmax(1)
    falling = _falling(probabilities, p, most)
    before = falling.double().cumsum(1) - falling
    count = (before < p).sum(1).clamp_min(1)
    return logits.masked_fill(~among_top(probabilities, count, falling), REMOVED)


def _falling(probabilities: Tensor, p: float, most: int | None) -> Tensor:
    """The largest probabilities, sorted; at least as many as sum to p."""
    width = probabilities.shape[1]
    if most is not None and most < width:
        return probabilities.topk(most).values
    if width > FEW and probabilities.device.type == "cpu":  # on accelerators the check costs more than a sort
        falling = probabilities.topk(FEW).values
        if bool((falling.double().sum(1) >= p).all()):
            return falling
    return probabilities.sort(1, descending=True).values


def keep_min_p(logits: Tensor, share: float) -> Tensor:
    """Keeps tokens whose probability is at least `share` of the best one's."""
    probabilities = logits.softmax(1)
    return logits.masked_fill(probabilities < share * probabilities.amax(1, keepdim=True), REMOVED)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Samples a token for each row by its number `uniform` in [0, 1).

    The cumulative probabilities are in the order of the vocabulary, not sorted: rounding of the logits, which depends
    on the batch size, could swap two nearly equal tokens.
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
