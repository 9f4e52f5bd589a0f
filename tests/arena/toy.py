"""A task that is learned in a few steps: the label is the first token; of two texts, whether their firsts are equal."""

from dataclasses import dataclass

import numpy as np

from longspan import config
from longspan.arena.settings import ArenaSetting, Training, shell
from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.registry import ArenaTask, DataFolders

CLASSES, VOCABULARY = 3, 9
SHELL = shell(1, 2, 16, 16, 16, dropout=0.1, attention_dropout=0.0)
PRESET = ArenaSetting({}, SHELL, Training(steps=6, batch=8, rate=1e-2, evaluations=3, clip=1.0))


class Toy(ArenaTask):
    name, title, generated = "toy", "Toy", True

    @dataclass(frozen=True, kw_only=True)
    class Options(ArenaTask.Options):
        length: int = config.option(12, "tokens", low=2)
        texts: int = config.option(1, "texts", low=1, high=2)
        grid: bool = config.option(False, "whether it is an image of 3 rows")

    def splits(self, place: DataFolders, seed: int = 0) -> Splits:
        options, draw = self.options, np.random.default_rng(seed)
        padded = not options.grid
        made = {}
        for split, count in (("train", 64), ("held_out", 32), ("test", 48)):
            many = count * options.texts
            lengths = draw.integers(4, options.length + 1, many) if padded else np.full(many, options.length)
            parts = [draw.integers(1, VOCABULARY, length).astype(np.uint8) for length in lengths]
            first = draw.integers(0, CLASSES, many)
            for part, label in zip(parts, first):
                part[0] = label + 1
            pairs = first.reshape(count, options.texts)
            labels = pairs[:, 0] if options.texts == 1 else (pairs[:, 0] == pairs[:, 1]).astype(np.int64)
            starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            made[split] = LabelledSequences(
                np.concatenate(parts), starts, labels.astype(np.int64), split, options.texts
            )
        grid = (3, options.length // 3) if options.grid else None
        classes = CLASSES if options.texts == 1 else 2
        return Splits(
            made["train"], made["held_out"], made["test"], VOCABULARY, classes, options.length, padded, grid, {"toy": 1}
        )

    def baselines(self, splits: Splits) -> dict[str, float]:
        return {"majority": float(np.bincount(splits.test.labels).max() / len(splits.test))}
