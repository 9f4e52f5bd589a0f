"""Texts cut from documents for pre-training: two spans that follow each other or do not, or one (spec: Devlin et al.
2019, Lan et al. 2020, Liu et al. 2019).

An epoch is planned by the lengths of sentences alone, in ranges of the corpus: a function of (seed, epoch, document).
Where the released code draws a shorter target once a document, here each text draws its own, so that it is a tenth of
the texts and not of the documents.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from longspan.data.order import draws
from longspan.data.text.corpora import Corpus
from longspan.errors import InvalidInput
from longspan.nn.loss import IGNORED

KINDS = ("next", "order", "none")
PLANNING = 1 << 40  # apart from the numbers of examples, so that plans and masks are drawn independently


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
        """The share of pairs whose second does not follow the first: one-sentence chunks push it above a half."""
        labels = self.rows[:, 4]
        return float((labels == 1).sum() / max(1, (labels != IGNORED).sum()))


def plan(corpus: Corpus, kind: str, length: int, *, short: float, seed: int, epoch: int) -> SpanPlan:
    """All texts of an epoch, of at most `length` tokens with those around them once they are cut."""
    if kind == "next" and len(corpus) < 2:
        raise InvalidInput(
            f"{corpus.tokens.path} holds one document, and next-sentence pairs need another one; "
            'an empty line ends a document, or give pairs = "order" or "none"'
        )
    around = 2 if kind == "none" else 3
    if length < around + 2:
        raise InvalidInput(f"texts of {length} tokens have no room beside the {around} that stand around them")
    make = {"next": _next, "order": _order, "none": _single}[kind]
    rows: list[tuple[int, ...]] = []
    for document in range(len(corpus)):
        generator = draws(seed, epoch, PLANNING | document)
        rows.extend(make(corpus, document, _Target(length - around, short, generator), generator))
    return SpanPlan(np.array(rows, dtype=np.int64).reshape(-1, 5))


class _Target:
    """How long a text is to be: `room`, or now and then less."""

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
            begin = middle  # what was not used of the chunk is put back
        else:
            yield int(borders[begin]), int(borders[middle]), int(borders[middle]), int(borders[stop]), 0
            begin = stop


def _order(corpus: Corpus, document: int, target: _Target, generator: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Two spans of one chunk, in their order or swapped; a document of one sentence is no pair."""
    borders, begin, end = corpus.borders, int(corpus.firsts[document]), int(corpus.firsts[document + 1])
    if end - begin == 1:
        yield int(borders[begin]), int(borders[end]), 0, 0, IGNORED
        return
    while begin < end:
        # A last sentence by itself has nothing to follow, and takes along the one before it.
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
    """Whole sentences of a document, as many as fit; one that is longer than a text goes on in the next."""
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
    """Behind the sentence with which a chunk from `begin` has `wanted` ids or more, or all there are; one at least."""
    reached = int(np.searchsorted(borders[begin + 1 : end + 1], borders[begin] + wanted, side="left")) + begin + 1
    return min(reached, end)


def cut(first: Span, second: Span, room: int, generator: np.random.Generator) -> tuple[Span, Span]:
    """Both in `room` ids: the longer one loses one after the other, each at its front or back with equal chance."""
    over = len(first) + len(second) - room
    if over <= 0:
        return first, second
    apart = min(over, abs(len(first) - len(second)))
    rest = over - apart
    # Once they are equally long the second gives first, as in the released code.
    gives = [rest // 2, rest - rest // 2]
    gives[0 if len(first) > len(second) else 1] += apart
    found = []
    for span, lost in zip((first, second), gives):
        front = int(generator.binomial(lost, 0.5))
        found.append(Span(span.start + front, span.stop - (lost - front)))
    return found[0], found[1]


__all__ = ["KINDS", "Span", "SpanPlan", "cut", "plan"]
