"""Parity at every token: is the number of ones so far odd? Trained on short sequences, tested on longer ones.

The bits are fair coins, so no bit tells another. In the test only tokens beyond the trained length have a label: what
counts is whether a model carries a state on, not whether it knows all short cases. A label depends on the bits up to
its token alone and is never in the input, so a model may read in both directions.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from longspan import config
from longspan.arena.tasks.examples import NO_LABEL, Splits
from longspan.arena.tasks.registry import ArenaTask, DataFolders, TokenGroups
from longspan.arena.tasks.token_labels import draw_splits, majority, matrix, share_right
from longspan.errors import InvalidOption

VERSION = 1


class Parity(ArenaTask):
    """Two classes: even and odd."""

    name = "parity"
    title = "Parity"
    generated = True

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        trained_length: int = config.option(32, "bits of a sequence to learn from", low=1, high=1_000_000)
        length: int = config.option(128, "bits of a sequence of the test", low=2, high=1_000_000)
        train: int = config.option(20_000, "sequences to learn from", low=1)
        held_out: int = config.option(1000, "sequences of the trained length that choose the best step", low=1)
        test: int = config.option(1000, "sequences of the test", low=1)

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.length <= self.trained_length:
                raise InvalidOption(
                    f"option length must be more than trained_length, {self.trained_length}, not {self.length}: only "
                    "longer sequences are tested"
                )

    @staticmethod
    def draw(random: np.random.Generator, count: int, length: int, unasked: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Bits and parities of `count` sequences; the first `unasked` tokens have no label."""
        ids = random.integers(0, 2, (count, length))
        labels = ids.cumsum(1) % 2
        labels[:, :unasked] = NO_LABEL
        return ids, labels

    def splits(self, folders: DataFolders, seed: int = 0) -> Splits:
        options = self.options
        short = partial(self.draw, length=options.trained_length)
        long = partial(self.draw, length=options.length, unasked=options.trained_length)
        draws = {"train": (short, options.train), "held_out": (short, options.held_out), "test": (long, options.test)}
        return draw_splits(
            self.name,
            draws,
            {"generator": VERSION, **config.plain(options)},
            seed,
            vocabulary=2,
            classes=2,
            length=options.length,
        )

    def baselines(self, splits: Splits) -> dict[str, float]:
        """`majority`; `last_bit`: the bit itself; `table_of_counts`: the label that each number of ones had in
        training, and the majority for numbers that were not there."""
        ids, labels = matrix(splits.test)
        seen, answers = matrix(splits.train)
        most = int(np.bincount(splits.train.asked).argmax())
        table = np.full(self.options.length + 1, most)
        table[seen.cumsum(1)] = answers  # the number decides the label, so every example agrees
        return {
            "majority": majority(splits),
            "last_bit": share_right(labels, ids),
            "table_of_counts": share_right(labels, table[ids.cumsum(1)]),
        }

    def groups(self, splits: Splits) -> TokenGroups:
        """By the distance from the beginning, in multiples of the trained length."""
        trained, length = self.options.trained_length, self.options.length
        parts = -(-length // trained) - 1
        names = tuple(f"{n * trained + 1}–{min((n + 1) * trained, length)}" for n in range(1, parts + 1))
        numbers = np.maximum(np.arange(length) // trained - 1, 0)
        return TokenGroups(
            "bits read before, the trained length being " + str(trained), names, np.tile(numbers, len(splits.test))
        )


__all__ = ["Parity"]
