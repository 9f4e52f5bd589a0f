"""Formal languages, drawn at any length, with a label at every position that has one.

A label depends on the word up to its position only, so that a model that reads from left to right can learn from all
of them. The test is the label at the last position. Labels after the last letter of a word are for the whole word.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from longspan.nn.loss import IGNORED

Words = tuple[np.ndarray, np.ndarray]  # letters and labels, (count, length) each
Draw = Callable[[np.random.Generator, int, int, int], Words]
MANY = 8  # words drawn for each one kept, so that the last labels can be balanced


@dataclass(frozen=True)
class Language:
    """How to draw words of a length and, for nested languages, of a largest depth."""

    name: str
    what: str  # the label, in words
    letters: tuple[str, ...]
    labels: tuple[str, ...]
    draw: Draw
    shortest: int = 1
    even: bool = False  # whether words have even lengths only
    nested: bool = False

    @property
    def begin(self) -> int:
        """The id of the token in front of every word."""
        return len(self.letters)

    def fit(self, length: int) -> int:
        """The next length that this language has."""
        length = max(length, self.shortest)
        return length + length % 2 if self.even else length

    def balanced(self, generator: np.random.Generator, count: int, length: int, depth: int) -> Words:
        """Words for a test: each last label about equally often, so that a guess has about 1 / labels."""
        letters, labels = self.draw(generator, MANY * count, length, depth)
        last, kept = labels[:, -1], []
        for number in range(len(self.labels)):
            share = count // len(self.labels) + (number < count % len(self.labels))
            kept.append(np.flatnonzero(last == number)[:share])
        rows = np.concatenate(kept)
        others = np.setdiff1d(np.arange(len(last)), rows)[: count - len(rows)]  # a label that is too rare
        rows = np.sort(np.concatenate([rows, others]))
        return letters[rows], labels[rows]


def _parity(generator: np.random.Generator, count: int, length: int, depth: int) -> Words:
    bits = generator.integers(2, size=(count, length))
    return bits, bits.cumsum(1) % 2


def _first(generator: np.random.Generator, count: int, length: int, depth: int) -> Words:
    bits = generator.integers(2, size=(count, length))
    return bits, np.repeat(bits[:, :1], length, 1)


def _dyck(kinds: int) -> Draw:
    """Letters: the opening brackets, then the closing ones. Label: 0 if all are closed, or the bracket to close."""

    def draw(generator: np.random.Generator, count: int, length: int, depth: int) -> Words:
        letters, labels = np.zeros((2, count, length), dtype=np.int64)
        stack, height, rows = np.zeros((count, depth + 1), dtype=np.int64), np.zeros(count, dtype=int), np.arange(count)
        opens, types = generator.random((length, count)) < 0.5, generator.integers(kinds, size=(length, count))
        for at in range(length):
            opening = (opens[at] | (height == 0)) & (height < depth)
            top = stack[rows, np.maximum(height - 1, 0)]
            letters[:, at] = np.where(opening, types[at], kinds + top)
            stack[rows[opening], height[opening]] = types[at][opening]
            height += np.where(opening, 1, -1)
            labels[:, at] = np.where(height == 0, 0, 1 + stack[rows, np.maximum(height - 1, 0)])
        return letters, labels

    return draw


NOUNS = ("key", "dog", "cabinet", "child")
ADJECTIVES, PREPOSITIONS = ("old", "small", "red"), ("near", "behind", "with")
SENTENCE = (
    "the",
    "that",
    "VERB",
    *ADJECTIVES,
    *PREPOSITIONS,
    *NOUNS,
    *(f"{noun}s" if noun != "child" else "children" for noun in NOUNS),
)
THE, THAT, VERB, ADJECTIVE, PREPOSITION = 0, 1, 2, 3, 6
NOUN = PREPOSITION + len(PREPOSITIONS)


class _Sentence:
    """Writes one sentence: a noun phrase of a given number of words, and its verb.

    "the key near the cabinets that the children VERB VERB": a verb agrees with the noun that its phrase begins with;
    other nouns stand between them. `depth` limits relative clauses inside each other.
    """

    def __init__(self, generator: np.random.Generator, length: int, depth: int) -> None:
        self.draws = iter(generator.random(6 * length + 8).tolist())
        self.letters: list[int] = []
        self.labels: list[int] = []
        self._clause(length, depth)

    def _add(self, letter: int, label: int = IGNORED) -> None:
        self.letters.append(letter)
        self.labels.append(label)

    def _pick(self, many: int) -> int:
        return int(next(self.draws) * many)

    def _clause(self, size: int, depth: int) -> None:
        plural = self._noun(size - 1, depth)
        self._add(VERB, plural)

    def _noun(self, size: int, depth: int) -> int:
        """The words of a noun phrase; returns 1 if its first noun is plural."""
        rest = size - 2
        adjectives = rest if rest < 3 else self._pick(2) if rest > 3 else 0
        plural = self._pick(2)
        self._add(THE)
        for _ in range(adjectives):
            self._add(ADJECTIVE + self._pick(len(ADJECTIVES)))
        self._add(NOUN + plural * len(NOUNS) + self._pick(len(NOUNS)))
        rest -= adjectives
        if rest >= 4 and depth > 0 and self._pick(2):
            self._add(THAT)
            self._clause(rest - 1, depth - 1)
        elif rest:
            self._add(PREPOSITION + self._pick(len(PREPOSITIONS)))
            self._noun(rest - 1, depth)
        return plural


def _agreement(generator: np.random.Generator, count: int, length: int, depth: int) -> Words:
    sentences = [_Sentence(generator, length, depth) for _ in range(count)]
    return np.array([each.letters for each in sentences]), np.array([each.labels for each in sentences])


def nearest_noun(letters: np.ndarray) -> np.ndarray:
    """A rule that ignores structure: the verb agrees with the noun that stands nearest before it."""
    nouns = letters >= NOUN
    last = letters.shape[1] - 1 - nouns[:, ::-1].argmax(1)
    found = letters[np.arange(len(letters)), last]
    return np.asarray(found >= NOUN + len(NOUNS), dtype=np.int64)


BRACKETS = ("(", "[", ")", "]")
LANGUAGES = {
    language.name: language
    for language in (
        Language("parity", "whether the number of ones is odd", ("0", "1"), ("even", "odd"), _parity),
        Language("first", "the first letter", ("0", "1"), ("0", "1"), _first),
        Language(
            "dyck1",
            "whether all brackets are closed",
            ("(", ")"),
            ("closed", "open"),
            _dyck(1),
            shortest=2,
            even=True,
            nested=True,
        ),
        Language(
            "dyck2",
            "which bracket must close next",
            BRACKETS,
            ("none", ")", "]"),
            _dyck(2),
            shortest=2,
            even=True,
            nested=True,
        ),
        Language(
            "agreement",
            "the number of the verb",
            SENTENCE,
            ("singular", "plural"),
            _agreement,
            shortest=3,
            nested=True,
        ),
    )
}

__all__ = ["BRACKETS", "LANGUAGES", "NOUN", "NOUNS", "SENTENCE", "VERB", "Language", "Words", "nearest_noun"]
