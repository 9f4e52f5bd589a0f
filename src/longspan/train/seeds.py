"""Sets of runs that differ only by their seed: a folder with `seeds.json`, and a run in `seed-0`, `seed-1`, …

`summary.json` has the mean of each metric, its standard deviation (n - 1) and the value of each seed.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from longspan import files
from longspan.data.files import read_json
from longspan.errors import InvalidInput
from longspan.train.history import read_history
from longspan.train.recipe import Recipe, of_run
from longspan.train.run import CONFIG, RESULT, SEEDS, Run

SUMMARY = "summary.json"
MOST_SEEDS = 1000


@dataclass(frozen=True)
class SeedSet:
    """The folder of a set and its seeds."""

    folder: Path
    seeds: tuple[int, ...]

    def run(self, seed: int) -> Path:
        """The folder of the run with this seed."""
        return self.folder / f"seed-{seed}"

    def finished(self, seed: int) -> bool:
        """Whether that run has written its model."""
        return (self.run(seed) / RESULT).exists()

    def begun(self, seed: int) -> bool:
        """Whether that run has a checkpoint to resume from."""
        return any(path.name.isdigit() for path in Run(self.run(seed)).checkpoints.glob("*"))

    def write(self) -> None:
        """Write `seeds.json`, which makes the folder a set."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files.write_text(self.folder / SEEDS, json.dumps({"seeds": list(self.seeds)}) + "\n")

    def recipe(self) -> Recipe:
        """The recipe of the set: that of its first run, which is resolved and has absolute paths."""
        return of_run(Run(self.run(self.seeds[0])))

    def summary(self) -> dict[str, Any]:
        """The finished runs with their metrics, and each metric's mean and deviation over them."""
        runs: list[dict[str, Any]] = [
            {"seed": seed, "run": str(self.run(seed)), "metrics": dict(read_history(self.run(seed)).final)}
            for seed in self.seeds
            if self.finished(seed)
        ]
        return {"seeds": list(self.seeds), "runs": runs, "metrics": spread([run["metrics"] for run in runs])}

    def write_summary(self) -> dict[str, Any]:
        """Write `summary.json`, and return it."""
        summary = self.summary()
        files.write_text(self.folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
        return summary


def new_set(folder: Path, recipe: Recipe, count: int) -> SeedSet:
    """A set of `count` seeds from the recipe's seed upward; a folder that is in use is refused."""
    if not 1 <= count <= MOST_SEEDS:
        raise InvalidInput(f"seeds must be 1 to {MOST_SEEDS}, not {count}")
    Run(folder).refuse_used()
    if (folder / CONFIG).exists():
        raise InvalidInput(f"{folder} has a run already; name another folder for the set")
    first = recipe.options().seed
    return SeedSet(folder, tuple(range(first, first + count)))


def is_set(folder: Path) -> bool:
    """Whether a folder holds a set of seeds."""
    return (folder / SEEDS).is_file()


def read_set(folder: Path) -> SeedSet:
    """The set in a folder."""
    seeds = read_json(folder / SEEDS).get("seeds")
    if (
        not isinstance(seeds, list)
        or not 0 < len(seeds) <= MOST_SEEDS
        or not all(type(seed) is int and seed >= 0 for seed in seeds)
    ):
        raise InvalidInput(f"{folder / SEEDS} must list the seeds of the set, not {seeds!r}")
    return SeedSet(folder, tuple(seeds))


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The same recipe with another seed."""
    return replace(recipe, train={**recipe.train, "seed": seed})


def spread(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Of each metric that all runs have: the mean, the standard deviation (n - 1; None for one run) and the values."""
    names = [name for name in runs[0] if all(name in run for run in runs)] if runs else []
    values = {name: [run[name] for run in runs] for name in names}
    return {
        name: {
            "mean": fmean(numbers),
            "deviation": stdev(numbers) if len(numbers) > 1 and all(map(math.isfinite, numbers)) else None,
            "values": numbers,
        }
        for name, numbers in values.items()
    }


__all__ = ["SEEDS", "SUMMARY", "SeedSet", "is_set", "new_set", "read_set", "spread", "with_seed"]
