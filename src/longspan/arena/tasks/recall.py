"""Associative recall over a distance, which is not in the benchmark: which value belongs to this key?

A sequence has `pairs` of a key and its value, then filler symbols, and at the end one of the keys. The keys of a
sequence are distinct, and values are drawn independently, so the label cannot be guessed from the keys: a model must
carry all pairs past the filler, or look back for the right one. All sequences have the same length and are distinct.

A pair is two adjacent symbols, which a model must first learn to bind. With `joined` it is one symbol: that is learned
in minutes on a CPU, and leaves only the distance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from longspan import config
from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.registry import ArenaTask, DataFolders
from longspan.arena.tasks.unique_splits import distinct_splits
from longspan.errors import InvalidOption

VERSION = 1
SHARD = 4096


def make(options: Mapping[str, Any], seed: int, number: int, count: int) -> LabelledSequences:
    """One shard. Ids: 0 is unused, then fillers, keys, and values or, if joined, pairs."""
    pairs, keys, values, fillers = (options[name] for name in ("pairs", "keys", "values", "fillers"))
    length = options["length"]
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, number))))
    key = draw.random((count, keys)).argsort(1)[:, :pairs]
    value = draw.integers(0, values, (count, pairs))
    target = draw.integers(0, pairs, count)
    ids = draw.integers(1, 1 + fillers, (count, length))
    if options["joined"]:
        ids[:, :pairs] = 1 + fillers + keys + key * values + value
    else:
        ids[:, 0 : 2 * pairs : 2] = 1 + fillers + key
        ids[:, 1 : 2 * pairs : 2] = 1 + fillers + keys + value
    rows = np.arange(count)
    ids[:, -1] = 1 + fillers + key[rows, target]
    kind = np.uint8 if _vocabulary(options) <= 256 else np.uint16
    starts = np.arange(count + 1, dtype=np.int64) * length
    return LabelledSequences(ids.astype(kind).ravel(), starts, value[rows, target], "recall")


def _vocabulary(options: Mapping[str, Any]) -> int:
    keys, values = options["keys"], options["values"]
    return int(1 + options["fillers"] + keys + (keys * values if options["joined"] else values))


class Recall(ArenaTask):
    """The classes are the values."""

    name = "recall"
    title = "Recall"
    generated = True

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pairs: int = config.option(8, "keys with a value in a sequence", low=1, high=1000)
        keys: int = config.option(16, "different keys", low=1, high=10_000)
        values: int = config.option(8, "different values, the classes", low=2, high=10_000)
        fillers: int = config.option(4, "different symbols between the pairs and the question", low=1, high=10_000)
        joined: bool = config.option(False, "whether a key and its value are one symbol")
        length: int = config.option(128, "tokens of a sequence, the question among them", low=3, high=1_000_000)
        train: int = config.option(20_000, "examples to learn from", low=1)
        held_out: int = config.option(1000, "examples that choose the best step", low=1)
        test: int = config.option(2000, "examples of the test", low=1)

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.keys < self.pairs:
                raise InvalidOption(f"option keys must be at least pairs, {self.pairs}, not {self.keys}: they differ")
            least = self.pairs * (1 if self.joined else 2) + 1
            if self.length < least:
                raise InvalidOption(
                    f"option length must be at least {least} for {self.pairs} pairs and a question, not {self.length}"
                )

    def splits(self, folders: DataFolders, seed: int = 0) -> Splits:
        options = self.options
        sizes = {"train": options.train, "held_out": options.held_out, "test": options.test}
        names = ("pairs", "keys", "values", "fillers", "joined", "length")
        generated = {"generator": VERSION, **{name: getattr(options, name) for name in names}}
        splits, notes = distinct_splits("recall", generated, make, sizes, shard=SHARD, seed=seed, folders=folders)
        return Splits(
            splits["train"],
            splits["held_out"],
            splits["test"],
            vocabulary=_vocabulary(generated),
            classes=options.values,
            length=options.length,
            padded=False,
            notes=notes,
        )

    def baselines(self, splits: Splits) -> dict[str, float]:
        """`majority`; `frequent_value`: the most frequent value of the sequence, the best guess without the keys."""
        options, test = self.options, splits.test
        most = np.bincount(splits.train.labels, minlength=splits.classes).argmax()
        ids = np.asarray(test.tokens).reshape(len(test), options.length)
        first = 1 + options.fillers + options.keys
        if options.joined:
            values = (ids[:, : options.pairs].astype(np.int64) - first) % options.values
        else:
            values = ids[:, 1 : 2 * options.pairs : 2].astype(np.int64) - first
        counts = np.zeros((len(test), splits.classes), dtype=np.int64)
        np.add.at(counts, (np.arange(len(test))[:, None], values), 1)
        return {
            "majority": float((test.labels == most).mean()),
            "frequent_value": float((test.labels == counts.argmax(1)).mean()),
        }


__all__ = ["Recall", "make"]
