"""Algorithmic problems, drawn without end: copy, reverse, sort, duplicate, addition, parity and expressions.

An example is a source and a target over a small alphabet. It depends only on the seed, the epoch and its number, so
training never sees an example twice, and a run resumes anywhere. The level of an example says how hard it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Inner

from longspan.data.base import Batch, Data
from longspan.data.order import draws
from longspan.data.text.blocks import Batches
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.nn.loss import IGNORED

PADDING, BEGIN, END = 0, 1, 2  # ids of the special tokens; symbols follow
SPECIAL = {"pad": "<pad>", "bos": "<s>", "eos": "</s>"}
DIGITS = tuple(map(str, range(10)))


@dataclass(frozen=True)
class Solved:
    """A source with its target, as numbers of symbols, and its level."""

    source: list[int]
    target: list[int]
    level: int


Draw = Callable[[np.random.Generator, int, int], Solved]


@dataclass(frozen=True)
class Problem:
    """How to draw an example of a size, its alphabet (None: as many symbols as asked for), and what a level is."""

    draw: Draw
    what: str
    symbols: tuple[str, ...] | None = None
    level: str = "length"


def _of_word(solve: Callable[[list[int]], list[int]]) -> Draw:
    def draw(generator: np.random.Generator, size: int, symbols: int) -> Solved:
        word = generator.integers(symbols, size=size).tolist()
        return Solved(word, solve(word), size)

    return draw


def _addition(generator: np.random.Generator, size: int, symbols: int) -> Solved:
    """Two numbers of `size` digits and their sum of `size + 1`, the highest digit first; 10 is the sign +."""
    first, second = generator.integers(10, size=(2, size)).tolist()
    total, carry, run, longest = [], 0, 0, 0
    for one, other in zip(reversed(first), reversed(second)):
        carry, digit = divmod(one + other + carry, 10)
        total.append(digit)
        run = run + 1 if carry else 0
        longest = max(longest, run)
    return Solved([*first, 10, *second], [carry, *reversed(total)], longest)


PLUS, TIMES, OPEN, CLOSE = 10, 11, 12, 13


def _expression(generator: np.random.Generator, size: int, symbols: int) -> Solved:
    """A bracketed sum or product of nesting depth `size`, and its value modulo 10."""
    source, value = _nested(generator, size)
    return Solved(source, [value], size)


def _nested(generator: np.random.Generator, depth: int) -> tuple[list[int], int]:
    if depth == 0:
        digit = int(generator.integers(10))
        return [digit], digit
    shallow = int(generator.integers(2)) if depth > 1 else 0  # of the other side: a digit, or one operation
    depths = (depth - 1, shallow) if generator.random() < 0.5 else (shallow, depth - 1)
    (left, one), (right, other) = (_nested(generator, each) for each in depths)
    operator = PLUS if generator.random() < 0.5 else TIMES
    value = one + other if operator == PLUS else one * other
    return [OPEN, *left, operator, *right, CLOSE], value % 10


PROBLEMS = {
    "copy": Problem(_of_word(list), "the same word"),
    "reverse": Problem(_of_word(lambda word: word[::-1]), "the word backwards"),
    "sort": Problem(_of_word(sorted), "the word's symbols in order"),
    "duplicate": Problem(_of_word(lambda word: word * 2), "the word twice"),
    "parity": Problem(_of_word(lambda word: [sum(word) % 2]), "whether the number of ones is odd", ("0", "1")),
    "addition": Problem(_addition, "the sum of two numbers", (*DIGITS, "+"), "carries in a row"),
    "expression": Problem(_expression, "the value modulo 10", (*DIGITS, "+", "*", "(", ")"), "depth"),
}


def alphabet(problem: str, symbols: int) -> tuple[str, ...]:
    """The symbols of a problem; `symbols` is how many, where the problem leaves it open."""
    return PROBLEMS[problem].symbols or tuple(map(str, range(symbols)))


def tokenizer(problem: str, symbols: int) -> Tokenizer:
    """Symbols, with or without spaces between them if each is one character."""
    names = [*SPECIAL.values(), *alphabet(problem, symbols)]
    inner = Inner(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=SPECIAL["pad"]))
    single = all(len(name) == 1 for name in alphabet(problem, symbols))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\S" if single else r"\S+"), behavior="removed", invert=True)
    return Tokenizer(inner, SPECIAL)


class Algorithm(Data):
    """Examples of a problem, as a text for decoders and as a pair for encoder–decoders.

    `text` is the begin token, the source, the begin token, the target and the end token, as 0w0w of Kitaev et al.
    (2020); its `text_targets` are those after the second begin token. `source` has a `source_mask`; `ids` begin with
    the begin token, and `targets` end with the end token.
    """

    def __init__(
        self, problem: str, *, symbols: int, sizes: tuple[int, int], examples: int, batch: int, seed: int, fixed: bool
    ) -> None:
        self.problem, self.symbols, self.sizes = problem, len(alphabet(problem, symbols)), sizes
        self.examples, self.batch, self.seed, self.fixed = examples, batch, seed, fixed

    def __len__(self) -> int:
        return self.examples

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        return Batches(range(self.examples), self.batch)

    def example(self, number: int, epoch: int) -> Solved:
        """One example; a `fixed` set is the same in every epoch."""
        generator = draws(self.seed, 0 if self.fixed else epoch, number)
        low, high = self.sizes
        return PROBLEMS[self.problem].draw(generator, int(generator.integers(low, high + 1)), self.symbols)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        solved = [self.example(number, epoch) for number in numbers]
        first = len(SPECIAL)
        sources = [[first + symbol for symbol in each.source] for each in solved]
        targets = [[*(first + symbol for symbol in each.target), END] for each in solved]
        texts = [[BEGIN, *source, BEGIN, *target[:-1]] for source, target in zip(sources, targets)]
        answers = [[IGNORED] * (len(source) + 1) + target for source, target in zip(sources, targets)]
        source = _padded(sources, PADDING)
        return {
            "text": _padded(texts, PADDING),
            "text_targets": _padded(answers, IGNORED),
            "source": source,
            "source_mask": source != PADDING,
            "ids": _padded([[BEGIN, *target[:-1]] for target in targets], PADDING),
            "targets": _padded(targets, IGNORED),
            "level": torch.tensor([each.level for each in solved]),
        }

    def fingerprint(self) -> str:
        low, high = self.sizes
        kind = "fixed" if self.fixed else "new in every epoch"
        return (
            f"{self.problem} of {self.symbols} symbols, sizes {low} to {high}, {self.examples} examples, {kind}, "
            f"batches of {self.batch}, seed {self.seed}"
        )


def _padded(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    table = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for row, content in zip(table, rows):
        row[: len(content)] = content
    return torch.from_numpy(table)


__all__ = ["BEGIN", "END", "PADDING", "PROBLEMS", "Algorithm", "Problem", "Solved", "alphabet", "tokenizer"]
