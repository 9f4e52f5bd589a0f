"""The plan of a run: its cells, their order, their time budgets, and the time it takes."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from longspan.arena import settings
from longspan.arena.runs.cell import Cell, Record
from longspan.errors import InvalidInput, InvalidOption

SPEED_TASK = "text"  # the task of the published efficiency table; its cells read random bytes and need no files
LENGTHS = (1024, 2048, 3072, 4096)
SPEED_SHARE, MOST_SHARE = 0.2, 0.5  # of the budget for speed cells: usually, and at most if they need more
START = 4.0  # seconds before a process trains: imports, and data from the cache
TRAINING_SHARE = 0.8  # of the rest of a cell's time; evaluation, which `seconds` does not count, takes the remainder
LEAST = 2.0  # seconds of training in a cell; less shows nothing
LIMIT, PATIENCE = 3.0, 300.0  # a cell's time limit: this multiple of its share, plus seconds for generating its data


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of a grid; an output folder holds the results of one set of arguments."""

    tasks: tuple[str, ...]
    models: tuple[str, ...]
    setting: str = "tiny"
    seeds: int = 3
    budget: float | None = None  # seconds of the whole run; without it, the setting gives the number of steps
    pretrain: bool = False  # run every cell a second time with self pre-training
    threads: int = 1
    lengths: tuple[int, ...] = LENGTHS  # of the speed cells; empty for none
    timed: tuple[str, ...] = ()  # models of the speed cells: `models` and their references
    data: str | None = None  # the folder of data sets, if a task needs one

    def __post_init__(self) -> None:
        for name, least in (("seeds", 1), ("threads", 1)):
            if getattr(self, name) < least:
                raise InvalidOption(f"--{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("tasks", "models"):
            if not getattr(self, name):
                raise InvalidOption(f"--{name} is empty; leave it out for the defaults")
        if self.budget is not None and not (0 < self.budget < math.inf):
            raise InvalidOption(f"--budget must be more than 0 seconds, not {self.budget:g}")
        if any(length < 1 for length in self.lengths):
            raise InvalidOption(f"--lengths must be at least 1, not {min(self.lengths)}")

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Arguments":
        fields: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in values.items()}
        return cls(**fields)

    def plain(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def plan(arguments: Arguments, *, workers: int = 1) -> list[Cell]:
    """The cells, seed by seed, so that a stopped grid has one seed of everything; speeds after the first seed."""
    given = arguments
    lengths = given.lengths if given.timed else ()
    shares = [settings.find(given.setting, task).share for task in given.tasks]
    in_order = [share for share in shares for _ in range(len(given.models) * (2 if given.pretrain else 1))]
    one, timing = _shares(given.budget, in_order * given.seeds, len(lengths) * len(given.timed), workers)
    seconds = [None if one is None else _training(one * share) for share in shares]
    cells = []
    for seed in range(given.seeds):
        cells += [
            Cell(
                task=task,
                model=model,
                setting=given.setting,
                seed=seed,
                pretrain=pretrain,
                seconds=allowed,
                threads=given.threads,
            )
            for task, allowed in zip(given.tasks, seconds, strict=True)
            for pretrain in ((False, True) if given.pretrain else (False,))
            for model in given.models
        ]
        if seed == 0:
            cells += [
                Cell(
                    kind="speed",
                    task=SPEED_TASK,
                    model=model,
                    setting=given.setting,
                    length=length,
                    seconds=timing,
                    threads=given.threads,
                )
                for length in lengths
                for model in given.timed
            ]
    return cells


def _shares(
    budget: float | None, shares: Sequence[float], timing: int, workers: int
) -> tuple[float | None, float | None]:
    """Total seconds of a training cell with share 1, and seconds of measuring for each of the `timing` speed cells.

    All cells of a task have the same share, to be fair. Each worker trains one cell at a time; speed cells run alone.
    """
    if budget is None:
        return None, None
    rounds, least, smallest = _longest(shares, workers), timing * wall(LEAST), wall(LEAST) / min(shares)
    share = min(MOST_SHARE, max(SPEED_SHARE, least / budget)) if timing else 0.0
    rest = 1 - (SPEED_SHARE if timing else 0.0)
    needed = max(rounds * smallest + least, least / MOST_SHARE, rounds * smallest / rest)
    if budget < needed:
        cells = len(shares) + timing
        raise InvalidOption(
            f"--budget {spell(budget)} is too little for {cells} cell{'s' * (cells > 1)} on {workers} "
            f"worker{'s' * (workers > 1)}: give at least {spell(math.ceil(needed))}, or fewer seeds, tasks, "
            "models or lengths (--no-speed)"
        )
    return budget * (1 - share) / rounds, _training(budget * share / timing) if timing else None


def _longest(times: Iterable[float], workers: int) -> float:
    """Total time if the first free worker takes the next cell."""
    busy = [0.0] * workers
    for seconds in times:
        busy[busy.index(min(busy))] += seconds
    return max(busy)


def _training(whole: float) -> float:
    """The seconds of training in a cell of `whole` seconds: the inverse of `wall`."""
    return round((whole - START) * TRAINING_SHARE, 1)


def wall(seconds: float) -> float:
    """The total time of a cell that trains for `seconds`."""
    return START + seconds / TRAINING_SHARE


def time_limit(cell: Cell) -> float | None:
    """Seconds after which a cell is stopped; None for a cell without a time budget."""
    return None if cell.seconds is None else LIMIT * wall(cell.seconds) + PATIENCE


def estimate(cell: Cell, earlier: Iterable[Record] = ()) -> float | None:
    """Seconds, by the budget or by earlier records of equal cells; None if unknown."""
    if cell.seconds is not None:
        return wall(cell.seconds)

    def conditions(one: Cell) -> tuple[object, ...]:
        return one.kind, one.task, one.model, one.setting, one.length, one.steps, one.pretrain, one.threads

    known = [
        record.seconds
        for record in earlier
        if record.state == "done" and record.seconds is not None and conditions(record.cell) == conditions(cell)
    ]
    return wall(sum(known) / len(known)) if known else None


def total(cells: Sequence[Cell], workers: int, earlier: Iterable[Record] = ()) -> float | None:
    """Seconds of all cells with this number of workers; None if one is unknown."""
    earlier = list(earlier)
    seconds = [estimate(cell, earlier) for cell in cells]
    if None in seconds:
        return None
    known = [(cell.kind, time) for cell, time in zip(cells, seconds, strict=True) if time is not None]
    alone = sum(time for kind, time in known if kind == "speed")
    return _longest((time for kind, time in known if kind != "speed"), workers) + alone


_DURATION = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?")


def duration(text: str) -> float:
    """Seconds of 90s, 20m, 1h30m."""
    match = _DURATION.fullmatch("".join(text.lower().split()))
    if match is None or not any(match.groups()):
        raise InvalidOption(f"--budget must be a time such as 90s, 20m or 1h30m, not {text!r}")
    hours, minutes, seconds = (float(match[unit] or 0) for unit in "hms")
    return 3600 * hours + 60 * minutes + seconds


def spell(seconds: float) -> str:
    """1h30m, 20m, 90s: what `duration` reads, to the second."""
    whole = round(seconds)
    if whole < 100:
        return f"{seconds:.1f}s" if seconds < 10 and seconds != whole else f"{whole}s"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return "".join(f"{number}{unit}" for number, unit in ((hours, "h"), (minutes, "m"), (left, "s")) if number)


def differences(old: Arguments, new: Arguments) -> list[str]:
    """The arguments that differ, with both values."""
    one, other = old.plain(), new.plain()
    return [f"{name} {_show(one[name])} there, {_show(other[name])} here" for name in one if one[name] != other[name]]


def _show(value: object) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, list) else "none" if value is None else str(value)


def check_cells(values: Any, source: str) -> list[Cell]:
    """Cells from JSON."""
    if not isinstance(values, list):
        raise InvalidInput(f"{source} has no list of cells; name another folder")
    try:
        cells = [Cell.read(cell) for cell in values]
    except InvalidInput as error:
        raise InvalidInput(f"{source} has a wrong cell: {error}") from None
    for cell in cells:
        if "/" in cell.key or "\0" in cell.key:
            raise InvalidInput(f"{source} has a cell whose name is no folder: {cell.key!r}")
    if len({cell.key for cell in cells}) < len(cells):
        raise InvalidInput(f"{source} has a cell twice")
    return cells


__all__ = [
    "LENGTHS",
    "SPEED_TASK",
    "Arguments",
    "check_cells",
    "differences",
    "duration",
    "estimate",
    "plan",
    "spell",
    "time_limit",
    "total",
    "wall",
]
