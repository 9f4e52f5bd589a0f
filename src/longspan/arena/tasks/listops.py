"""ListOps (Nangia & Bowman 2018; long as in Tay et al. 2020): the value of a nested expression over digits.

A node above the deepest level is an operator with probability 0.25, otherwise a digit; an operator has 2 to `arguments`
arguments. Only trees with more than `min_length` and fewer than `max_length` tokens are kept. A root that is a digit
would be one token and never kept, so every root is an operator: that does not change the distribution of the kept trees
and saves three quarters of the tries.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from longspan import config
from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.listops_expressions import CLOSE, OPEN, SYMBOLS, VOCABULARY, read_file
from longspan.arena.tasks.registry import ArenaTask, DataFolders
from longspan.arena.tasks.unique_splits import distinct_splits, split_notes
from longspan.errors import InvalidInput, InvalidOption

VERSION = 1  # of the generator; part of the cache key
SHARD = 2000
DRAWS = 1 << 16  # random numbers drawn at once
TRIES = 20_000  # consecutive trees of the wrong length before an error
GUESSES = 400  # values drawn for the subtrees under a root
FILES = {"train": "train", "held_out": "val", "test": "test"}
NAMES = ("basic_{}.tsv", "basic_{}.tsv.gz", "lra_basic_{}.tsv", "lra_basic_{}.tsv.gz")

_SHIFT = bytes(
    min(byte + 1, 255) for byte in range(256)
)  # trees are grown with ids one lower, so that a digit is its own id


def grow(options: Mapping[str, Any], draw: np.random.Generator, count: int) -> tuple[list[bytes], list[int], int]:
    """Trees as ids, their values, and the number of roots that were tried."""
    depth, least, most = options["depth"], options["min_length"], options["max_length"]
    kinds = options["arguments"] - 1  # 2 … arguments
    nodes = chain.from_iterable(_nodes(draw, kinds, options["probability"])).__next__
    roots = chain.from_iterable(draw.integers(10, 10 + 4 * kinds, 1024).tolist() for _ in iter(int, 1)).__next__
    operators = [0] * 10 + [kind // kinds for kind in range(4 * kinds)]
    arities = [0] * 10 + [kind % kinds + 2 for kind in range(4 * kinds)]
    digits, used, end = b"", 0, 0
    trees: list[bytes] = []
    labels: list[int] = []
    tried = since = 0
    while len(trees) < count:
        tried, since = tried + 1, since + 1
        if since > TRIES:
            raise InvalidOption(
                f"listops: of {TRIES} trees of depth {depth} and at most {options['arguments']} arguments none had "
                f"more than {least} and fewer than {most} tokens; change min_length, max_length, depth or probability"
            )
        tree = bytearray()
        length = 1  # lower bound of the finished tree: each missing argument has one token at least
        values: list[int] = []
        left, level = 1, 0  # missing arguments of the open operator, and its depth
        stack: list[tuple[int, int, list[int]]] = []
        node = roots()
        while True:
            if node < 10:
                tree.append(node)
                values.append(node)
            else:
                arity, operator = arities[node], operators[node]
                length += arity + 1
                if length >= most:
                    break
                tree.append(10 + operator)
                if level == depth - 2:  # all its arguments are digits of the deepest level
                    if used + arity > end:
                        digits, used, end = draw.integers(0, 10, DRAWS, dtype=np.uint8).tobytes(), 0, DRAWS
                    chosen = digits[used : used + arity]
                    used += arity
                    tree += chosen
                    tree.append(14)
                    values.append(_value(operator, list(chosen)))
                else:
                    stack.append((operator, left - 1, values))
                    left, level, values = arity, level + 1, []
                    node = nodes()
                    continue
            left -= 1
            while not left and stack:
                value = _value((above := stack.pop())[0], values)
                tree.append(14)
                left, values = above[1], above[2]
                values.append(value)
                level -= 1
            if not left:
                if length > least:
                    trees.append(bytes(tree).translate(_SHIFT))
                    labels.append(values[0])
                    since = 0
                break
            node = nodes()
    return trees, labels, tried


def _nodes(draw: np.random.Generator, kinds: int, probability: float) -> Iterator[list[int]]:
    """Random nodes: 0 to 9 are digits; from 10 on, an operator and its number of arguments in one number."""
    while True:
        operators = draw.integers(10, 10 + 4 * kinds, DRAWS)
        yield np.where(draw.random(DRAWS) < probability, operators, draw.integers(0, 10, DRAWS)).tolist()


def _value(operator: int, values: list[int]) -> int:
    if operator == 0:
        return min(values)
    if operator == 1:
        return max(values)
    if operator == 3:
        return sum(values) % 10
    values.sort()
    return (values[len(values) // 2] + values[(len(values) - 1) // 2]) // 2


def make(options: Mapping[str, Any], seed: int, number: int, count: int) -> LabelledSequences:
    """One shard."""
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, number))))
    trees, labels, _ = grow(options, draw, count)
    starts = np.concatenate([[0], np.cumsum([len(tree) for tree in trees])]).astype(np.int64)
    tokens = np.frombuffer(b"".join(trees), dtype=np.uint8)
    return LabelledSequences(tokens, starts, np.array(labels, dtype=np.int64), "listops")


class ListOps(ArenaTask):
    """Ten classes, the digits; brackets are tokens."""

    name = "listops"
    title = "ListOps"
    generated = True

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        depth: int = config.option(10, "levels of a tree; the last has digits only", low=2, high=64)
        arguments: int = config.option(10, "the most arguments of an operator", low=2, high=100)
        min_length: int = config.option(500, "trees have more tokens than this", low=1)
        max_length: int = config.option(2000, "trees have fewer tokens than this", low=6, high=1_000_000)
        probability: float = config.option(0.25, "of an operator, above the last level", low=0.0, high=1.0)
        train: int = config.option(96_000, "examples to learn from (of files: at most)", low=1)
        held_out: int = config.option(2000, "examples that choose the best step", low=1)
        test: int = config.option(2000, "examples of the test", low=1)
        files: str | None = config.option(None, "folder with basic_train.tsv, basic_val.tsv and basic_test.tsv, or .gz")

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.max_length < self.min_length + 2:
                raise InvalidOption(
                    f"option max_length must be at least min_length + 2, not {self.max_length}: trees have more than "
                    f"{self.min_length} tokens and fewer than {self.max_length}"
                )

    def splits(self, folders: DataFolders, seed: int = 0) -> Splits:
        options = self.options
        sizes = {"train": options.train, "held_out": options.held_out, "test": options.test}
        if options.files is None:
            names = ("depth", "arguments", "min_length", "max_length", "probability")
            generated = {"generator": VERSION, **{name: getattr(options, name) for name in names}}
            splits, notes = distinct_splits("listops", generated, make, sizes, shard=SHARD, seed=seed, folders=folders)
        else:
            folder = _folder(options.files, folders)
            splits = {
                split: read_file(_file(folder, FILES[split]), most=most, length=options.max_length)
                for split, most in sizes.items()
            }
            notes = {"source": f"files of {folder}", **split_notes(splits)}
        return Splits(
            splits["train"],
            splits["held_out"],
            splits["test"],
            vocabulary=VOCABULARY,
            classes=10,
            length=options.max_length,
            padded=True,
            notes=notes,
        )

    def baselines(self, splits: Splits) -> dict[str, float]:
        """`majority`; `first_token`: the most frequent label of the root; `root_digits`: root and digits under it."""
        train, test = splits.train, splits.test
        by_root = np.zeros((VOCABULARY, 10), dtype=np.int64)
        np.add.at(by_root, (train.tokens[train.starts[:-1]], train.labels), 1)
        shares = by_root.sum(0)
        roots = test.tokens[test.starts[:-1]]
        return {
            "majority": float((test.labels == shares.argmax()).mean()),
            "first_token": float((test.labels == by_root.argmax(1)[roots]).mean()),
            "root_digits": float((test.labels == _by_digits(test, shares / shares.sum())).mean()),
        }


def _by_digits(examples: LabelledSequences, shares: np.ndarray) -> np.ndarray:
    """The most probable value if the subtrees under the root are independent draws from the training labels.

    It is counted over `GUESSES` draws with a fixed seed.
    """
    draw = np.random.Generator(np.random.PCG64(0))
    predictions = np.zeros(len(examples), dtype=np.int64)
    for number in range(len(examples)):
        ids = np.asarray(examples.sequence(number)).astype(np.int64)
        opens = (ids >= OPEN) & (ids < CLOSE)
        level = np.cumsum(opens.astype(np.int64) - (ids == CLOSE))
        digits = ids[(ids < OPEN) & (level == 1)] - 1
        subtrees = int((opens & (level == 2)).sum())
        guesses = draw.choice(10, size=(GUESSES, subtrees), p=shares)
        values = np.concatenate([np.broadcast_to(digits, (GUESSES, len(digits))), guesses], axis=1)
        operator = SYMBOLS[ids[0] - 1]
        if operator == "[MIN":
            result = values.min(1)
        elif operator == "[MAX":
            result = values.max(1)
        elif operator == "[SM":
            result = values.sum(1) % 10
        else:
            result = np.median(values, axis=1).astype(np.int64)
        predictions[number] = np.bincount(result, minlength=10).argmax()
    return predictions


def _folder(files: str, folders: DataFolders) -> Path:
    """The folder as given, or relative to the folder of data sets."""
    tried = [Path(files), *([folders.data / files] if folders.data else [])]
    for folder in tried:
        if folder.is_dir():
            return folder
    raise InvalidInput(
        f"the task listops: no folder {' or '.join(map(str, tried))}; without `files` trees are generated"
    )


def _file(folder: Path, split: str) -> Path:
    names = [name.format(split) for name in NAMES]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise InvalidInput(f"{folder} has none of {', '.join(names)}; without `files` trees are generated")


__all__ = ["ListOps", "grow", "make"]
