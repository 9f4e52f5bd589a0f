"""Selective copying (Gu & Dao 2023; sizes as in MAD, Poli et al. 2024): repeat the symbols in order, not the blanks.

`marks` symbols stand among blanks. After them comes a sign, and then as many blanks, each of which has one label: the
first blank the first symbol, and so on. Symbols may repeat. What is asked for is never in the input behind the sign, so
a model may read in both directions.

In MAD's generator the last symbol always stands right before the sign. Here the places are drawn from all of them.
"""

from dataclasses import dataclass

import numpy as np

from longspan import config
from longspan.arena.tasks.examples import NO_LABEL, Splits
from longspan.arena.tasks.registry import ArenaTask, DataFolders, TokenGroups
from longspan.arena.tasks.token_labels import draw_splits, majority, matrix, ranges, share_right
from longspan.errors import InvalidOption

VERSION = 1
BLANK, SIGN, FIRST = 0, 1, 2  # ids; symbols follow from FIRST


class SelectiveCopy(ArenaTask):
    """The classes are the symbols."""

    name = "selective_copy"
    title = "Selective copy"
    generated = True

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        length: int = config.option(64, "tokens: places, the sign, and the blanks to fill", low=3, high=1_000_000)
        marks: int = config.option(8, "symbols to repeat", low=1, high=10_000)
        symbols: int = config.option(14, "different symbols, the classes", low=2, high=30_000)
        train: int = config.option(20_000, "sequences to learn from", low=1)
        held_out: int = config.option(1000, "sequences that choose the best step", low=1)
        test: int = config.option(1000, "sequences of the test", low=1)

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.length < 2 * self.marks + 1:
                raise InvalidOption(
                    f"option length must be at least {2 * self.marks + 1} for {self.marks} symbols, a sign and as "
                    f"many blanks, not {self.length}"
                )

        @property
        def places(self) -> int:
            """Tokens before the sign."""
            return self.length - self.marks - 1

    def draw(self, random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels of `count` sequences."""
        options = self.options
        place = np.sort(random.random((count, options.places)).argsort(1)[:, : options.marks], axis=1)
        symbol = random.integers(0, options.symbols, (count, options.marks))
        ids = np.full((count, options.length), BLANK)
        labels = np.full(ids.shape, NO_LABEL)
        np.put_along_axis(ids, place, FIRST + symbol, 1)
        ids[:, options.places] = SIGN
        labels[:, options.places + 1 :] = symbol
        return ids, labels

    def splits(self, folders: DataFolders, seed: int = 0) -> Splits:
        options = self.options
        draws = {name: (self.draw, getattr(options, name)) for name in ("train", "held_out", "test")}
        return draw_splits(
            self.name,
            draws,
            {"generator": VERSION, **config.plain(options)},
            seed,
            vocabulary=FIRST + options.symbols,
            classes=options.symbols,
            length=options.length,
        )

    def baselines(self, splits: Splits) -> dict[str, float]:
        """`majority`; `frequent_symbol`: the most frequent of the sequence; `nearest_place`: the symbol nearest to
        where the one asked for would be if all were evenly spread, which needs no counting."""
        options = self.options
        ids, labels = matrix(splits.test)
        before = ids[:, : options.places]
        counts = np.stack([(before == FIRST + symbol).sum(1) for symbol in range(options.symbols)], 1)
        expected = (np.arange(1, options.marks + 1) * (options.places + 1)) / (options.marks + 1) - 1
        far = np.where(before >= FIRST, np.abs(np.arange(options.places) - expected[:, None, None]), np.inf)
        nearest = np.take_along_axis(before, far.argmin(-1).T, 1) - FIRST
        return {
            "majority": majority(splits),
            "frequent_symbol": share_right(labels, counts.argmax(1)[:, None]),
            "nearest_place": float((labels[:, options.places + 1 :] == nearest).mean()),
        }

    def groups(self, splits: Splits) -> TokenGroups:
        """By the number of symbols before the one asked for."""
        options = self.options
        order = np.arange(options.length) - options.places  # from 1
        names, numbers = ranges(np.maximum(order, 1), options.marks, first=2)
        return TokenGroups("place of the symbol in the order", names, np.tile(numbers, len(splits.test)))


__all__ = ["SelectiveCopy"]
