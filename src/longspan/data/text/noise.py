"""What spoils a text that is to be restored (Lewis et al. 2020): from the sentences of a text to others.

They are composed in the order of `Noise.apply`: sentences are permuted first, and the text is rotated last.
"""

from dataclasses import dataclass

import numpy as np

from longspan import config
from longspan.config import option

Sentences = list[np.ndarray]
Generator = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Noise(config.Options):
    """Of a recipe's table `[task.noise]`; the defaults are the paper's last ones."""

    permute: float = option(1.0, "of the sentences that is put in another order", low=0, high=1)
    mask: float = option(0.0, "of the tokens that is masked, one by one", low=0, high=1)
    delete: float = option(0.0, "of the tokens that is left out", low=0, high=1)
    infill: float = option(0.3, "of the tokens that is covered by spans, each of which becomes one mask", low=0, high=1)
    span: float = option(3.0, "mean length of these spans, which are of Poisson's distribution", low=0.1)
    random: float = option(0.0, "of the masks that becomes another token (the authors' command: 0.1)", low=0, high=1)
    rotate: float = option(0.0, "of the texts that begins at a drawn token", low=0, high=1)

    def apply(self, sentences: Sentences, generator: Generator, *, mask: int, drawn_from: np.ndarray) -> np.ndarray:
        """The spoiled text; `drawn_from` are the tokens that a mask may become."""
        found = permute(sentences, self.permute, generator)
        found = delete(found, self.delete, generator)
        found = infill(found, self.infill, self.span, generator, mask=mask)
        found = mask_tokens(found, self.mask, generator, mask=mask)
        text = np.concatenate(found)
        if self.random:
            masks = np.flatnonzero(text == mask)
            chosen = masks[generator.random(len(masks)) < self.random]
            text[chosen] = drawn_from[generator.integers(len(drawn_from), size=len(chosen))]
        return rotate(text, generator) if self.rotate and generator.random() < self.rotate else text


def permute(sentences: Sentences, share: float, generator: Generator) -> Sentences:
    """`share` of the sentences in another order among their places."""
    count = _about(len(sentences) * share, generator)
    places = np.sort(generator.permutation(len(sentences))[:count])
    found = list(sentences)
    for place, source in zip(places, generator.permutation(places)):
        found[place] = sentences[source]
    return found


def mask_tokens(sentences: Sentences, share: float, generator: Generator, *, mask: int) -> Sentences:
    """Each token becomes the mask by itself."""
    return [np.where(generator.random(len(each)) < share, mask, each) if share else each for each in sentences]


def delete(sentences: Sentences, share: float, generator: Generator) -> Sentences:
    """Each token is left out by itself: where, the model must find."""
    return [each[generator.random(len(each)) >= share] if share else each for each in sentences]


def rotate(text: np.ndarray, generator: Generator) -> np.ndarray:
    """The text from a drawn token on, and what was before that behind it."""
    return np.roll(text, -int(generator.integers(len(text)))) if len(text) else text


def infill(sentences: Sentences, share: float, span: float, generator: Generator, *, mask: int) -> Sentences:
    """Spans of drawn lengths become one mask each, and those of length 0 put one in, until `share` of the tokens is
    covered; no span goes over the end of a sentence, and none touches what another covers."""
    if not share:
        return sentences
    sizes = np.array([len(each) for each in sentences])
    free = sizes.copy()
    own: list[list[int]] = [[] for _ in sentences]
    for length in span_lengths(_about(float(sizes.sum()) * share, generator), span, generator):
        left = length
        while True:
            # A span that fits nowhere goes on in another sentence, so that no less is covered.
            now = min(left, int(free.max()))
            weights = np.where(free >= now, free if now else sizes, 0).astype(float)
            place = int(generator.choice(len(sizes), p=weights / weights.sum())) if weights.sum() else 0
            own[place].append(now)
            free[place] -= now
            left -= now
            if left <= 0 or not free.max():
                break
    return [_cover(each, spans, generator, mask) for each, spans in zip(sentences, own)]


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
    """One mask for each span; all ways in which they stand apart in the sentence are equally likely."""
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
    """A whole number whose mean is `number`: short texts are not rounded all the same way."""
    return int(number) + int(generator.random() < number - int(number))


__all__ = ["Noise", "delete", "infill", "mask_tokens", "permute", "rotate", "span_lengths"]
