"""Spans for pre-training: pairs for next-sentence prediction (Devlin et al. 2019), pairs for sentence-order prediction
(Lan et al. 2020), or single spans (Liu et al. 2019).

The plan of an epoch depends on sentence lengths, seed, epoch and document only. The released code draws a shorter
target once per document; here each text draws its own, so that a tenth of the texts is short, not of the documents.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from longspan.data.order import draws
from longspan.data.text.corpora import Corpus
from longspan.errors import InvalidInput
from longspan.nn.loss import IGNORED

KINDS = ("next", "order", "none")
PLANNING = 1 << 40  # separates these random numbers from those of examples, so that plans and masks are independent


@dataclass(frozen=True)
class Span:
    """Ids start..stop-1 of the corpus."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class SpanPlan:
    """The texts of an epoch: rows of (first start, first stop, second start, second stop, label)."""

    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, number: int) -> tuple[Span, Span, int]:
        """The two spans of a text before they are cut to length (the second may be empty), and its label."""
        a, b, c, d, label = map(int, self.rows[number])
        return Span(a, b), Span(c, d), label

    @property
    def negatives(self) -> float:
        """The share of pairs whose second does not follow the first; one-sentence chunks push it above one half."""
        labels = self.rows[:, 4]
        return float((labels == 1).sum() / max(1, (labels != IGNORED).sum()))


def plan(corpus: Corpus, kind: str, length: int, *, short: float, seed: int, epoch: int) -> SpanPlan:
    """All texts of an epoch, of at most `length` tokens with special tokens, once they are cut."""
    if kind == "next" and len(corpus) < 2:
        raise InvalidInput(
            f"{corpus.tokens.path} holds one document, and next-sentence pairs need another one; "
            'an empty line ends a document, or give pairs = "order" or "none"'
        )
    around = 2 if kind == "none" else 3
    if length < around + 2:
        raise InvalidInput(f"texts of {length} tokens leave no room beside {around} special tokens")
    make = {"next": _next, "order": _order, "none": _single}[kind]
    rows: list[tuple[int, ...]] = []
    for document in range(len(corpus)):
        generator = draws(seed, epoch, PLANNING | document)
        rows.extend(make(corpus, document, _Target(length - around, short, generator), generator))
    return SpanPlan(np.array(rows, dtype=np.int64).reshape(-1, 5))


class _Target:
    """Draws the length of a text: `room`, or less with probability `short`."""

    def __init__(self, room: int, short: float, generator: np.random.Generator) -> None:
        self.room, self.short, self.generator = room, short, generator

    def draw(self) -> int:
        shorter = self.short > 0 and self.generator.random() < self.short
        return int(self.generator.integers(2, self.room, endpoint=True)) if shorter else self.room


def _next(corpus: Corpus, document: int, target: _Target, generator: np.random.Generator) -> Iterator[tuple[int, ...]]:
    borders, begin, end = corpus.borders, int(corpus.firsts[document]), int(corpus.firsts[document + 1])
    while begin < end:
        wanted = target.draw()
        stop = _fill(borders, begin, end, wanted)
        middle = begin + 1 if stop - begin == 1 else int(generator.integers(begin + 1, stop))
        if stop - begin == 1 or generator.random() < 0.5:
            other = int(generator.integers(len(corpus) - 1))
            other += other >= document
            first, last = int(corpus.firsts[other]), int(corpus.firsts[other + 1])
            start = int(generator.integers(first, last))
            left = wanted - int(borders[middle] - borders[begin])
            until = _fill(borders, start, last, left)
            yield int(borders[begin]), int(borders[middle]), int(borders[start]), int(borders[until]), 1
            begin = middle  # the unused rest of the chunk is used again
        else:
            yield int(borders[begin]), int(borders[middle]), int(borders[middle]), int(borders[stop]), 0
            begin = stop


def _order(corpus: Corpus, document: int, target: _Target, generator: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Two spans of one chunk, in order or swapped; a document of one sentence gives no pair."""
    borders, begin, end = corpus.borders, int(corpus.firsts[document]), int(corpus.firsts[document + 1])
    if end - begin == 1:
        yield int(borders[begin]), int(borders[end]), 0, 0, IGNORED
        return
    while begin < end:
        # A single last sentence makes no pair, so it takes the one before it.
        begin = min(begin, end - 2)
        stop = max(begin + 2, _fill(borders, begin, end, target.draw()))
        middle = int(generator.integers(begin + 1, stop))
        first, second = (begin, middle), (middle, stop)
        swapped = generator.random() < 0.5
        if swapped:
            first, second = second, first
        yield (*(int(borders[place]) for place in (*first, *second)), int(swapped))
        begin = stop


def _single(
    corpus: Corpus, document: int, target: _Target, generator: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """As many whole sentences of a document as fit; a sentence longer than a text continues in the next text."""
    borders, begin, end = corpus.borders, int(corpus.firsts[document]), int(corpus.firsts[document + 1])
    while begin < end:
        wanted = target.draw()
        stop = int(np.searchsorted(borders[begin : end + 1], borders[begin] + wanted, side="right")) + begin - 1
        if stop > begin:
            yield int(borders[begin]), int(borders[stop]), 0, 0, IGNORED
            begin = stop
            continue
        for start in range(int(borders[begin]), int(borders[begin + 1]), target.room):
            yield start, min(start + target.room, int(borders[begin + 1])), 0, 0, IGNORED
        begin += 1


def _fill(borders: np.ndarray, begin: int, end: int, wanted: int) -> int:
    """The end of a chunk from `begin` with at least `wanted` ids, or all there are; at least one sentence."""
    reached = int(np.searchsorted(borders[begin + 1 : end + 1], borders[begin] + wanted, side="left")) + begin + 1
    return min(reached, end)


def cut(first: Span, second: Span, room: int, generator: np.random.Generator) -> tuple[Span, Span]:
    """Cuts both spans to `room` ids: the longer one loses ids, at its front or back with equal chance."""
    over = len(first) + len(second) - room
    if over <= 0:
        return first, second
    apart = min(over, abs(len(first) - len(second)))
    rest = over - apart
    # Once they are equally long the second is cut first, as in the released code.
    gives = [rest // 2, rest - rest // 2]
    gives[0 if len(first) > len(second) else 1] += apart
    found = []
    for span, lost in zip((first, second), gives):
        front = int(generator.binomial(lost, 0.5))
        found.append(Span(span.start + front, span.stop - (lost - front)))
    return found[0], found[1]


__all__ = ["KINDS", "Span", "SpanPlan", "cut", "plan"]
