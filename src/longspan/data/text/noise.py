"""BART's noise for denoising pre-training (Lewis et al. 2020): permutation, deletion, infilling, masking, rotation.

`Noise.apply` composes them in this order: sentences are permuted first, the text is rotated last.
"""

from dataclasses import dataclass

import numpy as np

from longspan import config
from longspan.config import option

Sentences = list[np.ndarray]
Generator = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Noise(config.Options):
    """The table `[task.noise]` of a recipe; the defaults are the paper's final choice."""

    permute: float = option(1.0, "share of sentences that is permuted", low=0, high=1)
    mask: float = option(0.0, "share of tokens that is masked, each independently", low=0, high=1)
    delete: float = option(0.0, "share of tokens that is deleted", low=0, high=1)
    infill: float = option(0.3, "share of tokens that is covered by spans; each span becomes one mask", low=0, high=1)
    span: float = option(3.0, "mean length of these spans (Poisson)", low=0.1)
    random: float = option(0.0, "share of masks that becomes a random token (the authors' command: 0.1)", low=0, high=1)
    rotate: float = option(0.0, "share of texts that is rotated to begin at a random token", low=0, high=1)

    def apply(self, sentences: Sentences, generator: Generator, *, mask: int, drawn_from: np.ndarray) -> np.ndarray:
        """The noisy text; a mask may become a token of `drawn_from`."""
        noisy = permute(sentences, self.permute, generator)
        noisy = delete(noisy, self.delete, generator)
        noisy = infill(noisy, self.infill, self.span, generator, mask=mask)
        noisy = mask_tokens(noisy, self.mask, generator, mask=mask)
        text = np.concatenate(noisy)
        if self.random:
            masks = np.flatnonzero(text == mask)
            chosen = masks[generator.random(len(masks)) < self.random]
            text[chosen] = drawn_from[generator.integers(len(drawn_from), size=len(chosen))]
        return rotate(text, generator) if self.rotate and generator.random() < self.rotate else text


def permute(sentences: Sentences, share: float, generator: Generator) -> Sentences:
    """Permutes `share` of the sentences among their positions."""
    count = _about(len(sentences) * share, generator)
    positions = np.sort(generator.permutation(len(sentences))[:count])
    permuted = list(sentences)
    for position, source in zip(positions, generator.permutation(positions)):
        permuted[position] = sentences[source]
    return permuted


def mask_tokens(sentences: Sentences, share: float, generator: Generator, *, mask: int) -> Sentences:
    """Masks each token independently."""
    return [np.where(generator.random(len(each)) < share, mask, each) if share else each for each in sentences]


def delete(sentences: Sentences, share: float, generator: Generator) -> Sentences:
    """Deletes each token independently; the model must find where."""
    return [each[generator.random(len(each)) >= share] if share else each for each in sentences]


def rotate(text: np.ndarray, generator: Generator) -> np.ndarray:
    """The text rotated to begin at a random token."""
    return np.roll(text, -int(generator.integers(len(text)))) if len(text) else text


def infill(sentences: Sentences, share: float, span: float, generator: Generator, *, mask: int) -> Sentences:
    """Replaces spans of random lengths by one mask each (length 0 inserts one) until `share` of the tokens is covered.

    No span crosses the end of a sentence, and spans do not overlap.
    """
    if not share:
        return sentences
    sizes = np.array([len(each) for each in sentences])
    free = sizes.copy()
    spans: list[list[int]] = [[] for _ in sentences]
    for length in span_lengths(_about(float(sizes.sum()) * share, generator), span, generator):
        left = length
        while True:
            # A span that fits nowhere continues in another sentence, so that the share is still covered.
            now = min(left, int(free.max()))
            weights = np.where(free >= now, free if now else sizes, 0).astype(float)
            index = int(generator.choice(len(sizes), p=weights / weights.sum())) if weights.sum() else 0
            spans[index].append(now)
            free[index] -= now
            left -= now
            if left <= 0 or not free.max():
                break
    return [_cover(ids, lengths, generator, mask) for ids, lengths in zip(sentences, spans)]


def span_lengths(budget: int, mean: float, generator: Generator) -> list[int]:
    """Lengths drawn until they cover `budget` tokens; the last is cut to what is left."""
    found: list[int] = []
    left = budget
    while left > 0:
        length = int(generator.poisson(mean))
        found.append(min(length, left))
        left -= length
    return found


def _cover(ids: np.ndarray, spans: list[int], generator: Generator, mask: int) -> np.ndarray:
    """Replaces each span by one mask; all arrangements of the spans in the sentence are equally likely."""
    if not spans:
        return ids
    kept = len(ids) - sum(spans)
    slots = np.sort(generator.permutation(kept + len(spans))[: len(spans)])
    order = generator.permutation(len(spans))
    found: list[int] = []
    place = 0
    for number, slot in enumerate(slots):
        until = place + int(slot) - len(found)  # ids that are kept before this span
        found.extend(int(each) for each in ids[place:until])
        found.append(mask)
        place = until + spans[order[number]]
    found.extend(int(each) for each in ids[place:])
    return np.array(found, dtype=np.int64)


def _about(number: float, generator: Generator) -> int:
    """A random integer with mean `number`, so that short texts are not always rounded the same way."""
    return int(number) + int(generator.random() < number - int(number))


__all__ = ["Noise", "delete", "infill", "mask_tokens", "permute", "rotate", "span_lengths"]
