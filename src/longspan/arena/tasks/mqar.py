"""Multi-query associative recall (Arora et al. 2023, Zoology): which value belongs to this key, asked many times.

A sequence begins with `pairs` of a key and its value, k v k v …; keys differ, and so do values. Then every key comes
once more, and its label is its value. The questions are at even distances from the pairs, drawn without replacement
with probabilities ∝ gap^(power − 1), so near ones are frequent; all other places hold id 0. Values are never in the
input after the pairs, so a model may read in both directions.

Two differences from the released generator. Places without a question hold id 0 there too, unless
`random_non_queries` is set, which is its default: then the asked key may be among the fillers, and no model can be
right everywhere. Keys and values have as many ids as the options say, not half of the vocabulary each.
"""

from dataclasses import dataclass

import numpy as np

from longspan import config
from longspan.arena.tasks.examples import NO_LABEL, Splits
from longspan.arena.tasks.registry import ArenaTask, DataFolders, TokenGroups
from longspan.arena.tasks.token_labels import draw_splits, majority, matrix, ranges, share_right
from longspan.errors import InvalidOption

VERSION = 1


class Mqar(ArenaTask):
    """The classes are the values; ids are 0, then keys, then values."""

    name = "mqar"
    title = "MQAR"
    generated = True

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        length: int = config.option(64, "tokens of a sequence, an even number", low=4, high=1_000_000)
        pairs: int = config.option(8, "keys with a value, each asked for once", low=1, high=10_000)
        keys: int = config.option(64, "different keys", low=1, high=30_000)
        values: int = config.option(64, "different values, the classes", low=2, high=30_000)
        power: float = config.option(0.01, "of the gaps' probabilities, gap^(power − 1); 1: all alike", low=0)
        train: int = config.option(20_000, "sequences to learn from", low=1)
        held_out: int = config.option(1000, "sequences that choose the best step", low=1)
        test: int = config.option(1000, "sequences of the test", low=1)

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.length % 2 or self.length < 4 * self.pairs:
                raise InvalidOption(
                    f"option length must be even and at least {4 * self.pairs} for {self.pairs} pairs and as many "
                    f"questions, not {self.length}"
                )
            for name in ("keys", "values"):
                if getattr(self, name) < self.pairs:
                    raise InvalidOption(f"option {name} must be at least pairs, {self.pairs}: they differ")

    def draw(self, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels of `count` sequences."""
        options = self.options
        key = 1 + random.random((count, options.keys)).argsort(1)[:, : options.pairs]
        value = random.random((count, options.values)).argsort(1)[:, : options.pairs]
        ids = np.zeros((count, options.length), dtype=np.int64)
        labels = np.full(ids.shape, NO_LABEL)
        ids[:, 0 : 2 * options.pairs : 2] = key
        ids[:, 1 : 2 * options.pairs : 2] = 1 + options.keys + value
        gaps = np.arange(1, (options.length - 2 * options.pairs) // 2 + 1)
        # The smallest of exponential times with rate w are draws without replacement with weights w.
        times = random.exponential(size=(count, len(gaps))) / gaps ** (options.power - 1.0)
        gap = times.argsort(1)[:, : options.pairs]  # from 0, in the order of the keys
        places = 2 * options.pairs + 2 * gap
        np.put_along_axis(ids, places, key, 1)
        np.put_along_axis(labels, places, value, 1)
        return ids, labels

    def splits(self, folders: DataFolders, seed: int = 0) -> Splits:
        options = self.options
        draws = {name: (self.draw, getattr(options, name)) for name in ("train", "held_out", "test")}
        return draw_splits(
            self.name,
            draws,
            {"generator": VERSION, **config.plain(options)},
            seed,
            vocabulary=1 + options.keys + options.values,
            classes=options.values,
            length=options.length,
        )

    def baselines(self, splits: Splits) -> dict[str, float]:
        """`majority`; `value_in_context`: any value of the sequence, 1 / pairs; `latest_value`: that of the last
        pair."""
        options = self.options
        ids, labels = matrix(splits.test)
        latest = ids[:, 2 * options.pairs - 1] - 1 - options.keys
        return {
            "majority": majority(splits),
            "value_in_context": 1 / options.pairs,
            "latest_value": share_right(labels, latest[:, None]),
        }

    def groups(self, splits: Splits) -> TokenGroups:
        """By the distance of a question from its key."""
        ids, labels = matrix(splits.test)
        pairs = 2 * self.options.pairs
        first = (ids[:, None, :] == ids[:, 0:pairs:2, None]).argmax(1) * 2  # of a question: where its key is
        distance = np.where(labels == NO_LABEL, 1, np.arange(ids.shape[1]) - first)
        names, numbers = ranges(distance.ravel(), self.options.length)
        return TokenGroups("tokens between a question and its key", names, numbers)


__all__ = ["Mqar"]
