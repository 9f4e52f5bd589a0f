"""The plan of a run: which cells, in which order, with how much time each, and how long that takes."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from longspan.arena import settings
from longspan.arena.runs.cell import Cell, Record
from longspan.errors import InvalidInput, InvalidOption

SPEED_TASK = "text"  # the published efficiency table is of it; its cells read random bytes and need no files
LENGTHS = (1024, 2048, 3072, 4096)
SPEED_SHARE, MOST_SHARE = 0.2, 0.5  # of a budget, where there are speed cells; and where they could do with no less
START = 4.0  # seconds until a process trains: imports, and data from the cache
TRAINING_SHARE = 0.8  # of the rest of a cell's time: the remainder goes to evaluation, which `seconds` leaves out
LEAST = 2.0  # seconds of training in a cell; with less there is nothing to see
LIMIT, PATIENCE = 3.0, 300.0  # a cell is stopped after so many times its share, and seconds for making its data


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What makes results comparable: an output folder holds those of one of these."""

    tasks: tuple[str, ...]
    models: tuple[str, ...]
    setting: str = "tiny"
    seeds: int = 3
    budget: float | None = None  # seconds of the whole run; without one, each setting says how many steps
    pretrain: bool = False  # whether every cell is there a second time, with self pre-training
    threads: int = 1
    lengths: tuple[int, ...] = LENGTHS  # of the speed cells; none for no such cells
    timed: tuple[str, ...] = ()  # models of the speed cells: those above, and what they are compared with
    data: str | None = None  # the folder of data sets, where a task needs one

    def __post_init__(self) -> None:
        for name, least in (("seeds", 1), ("threads", 1)):
            if getattr(self, name) < least:
                raise InvalidOption(f"--{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("tasks", "models"):
            if not getattr(self, name):
                raise InvalidOption(f"--{name} is empty; leave it out for the usual ones")
        if self.budget is not None and not (0 < self.budget < math.inf):
            raise InvalidOption(f"--budget must be more than 0 seconds, not {self.budget:g}")
        if any(length < 1 for length in self.lengths):
            raise InvalidOption(f"--lengths must be at least 1, not {min(self.lengths)}")

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Arguments":
        made: dict[str, Any] = {key: tuple(part) if isinstance(part, list) else part for key, part in values.items()}
        return cls(**made)

    def plain(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def plan(arguments: Arguments, *, workers: int = 1) -> list[Cell]:
    """Seed by seed, so that a grid that is stopped has one seed of all; the speeds after the first of them."""
    given = arguments
    lengths = given.lengths if given.timed else ()
    shares = [settings.find(given.setting, task).share for task in given.tasks]
    in_order = [share for share in shares for _ in range(len(given.models) * (2 if given.pretrain else 1))]
    one, timing = _shares(given.budget, in_order * given.seeds, len(lengths) * len(given.timed), workers)
    seconds = [None if one is None else _training(one * share) for share in shares]
    found = []
    for seed in range(given.seeds):
        found += [
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
            found += [
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
    return found


def _shares(
    budget: float | None, shares: Sequence[float], timing: int, workers: int
) -> tuple[float | None, float | None]:
    """Seconds of a training cell whose share is 1, all told, and of measuring for each of the `timing` speed cells.

    All cells of a task have the same share, so that it is fair. They train side by side, one at a time by each worker;
    speeds are measured alone.
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
    """How long it takes until all are done, each by the first worker that is free."""
    busy = [0.0] * workers
    for each in times:
        busy[busy.index(min(busy))] += each
    return max(busy)


def _training(whole: float) -> float:
    """Of so many seconds of a cell, those that it trains: the inverse of `wall`."""
    return round((whole - START) * TRAINING_SHARE, 1)


def wall(seconds: float) -> float:
    """How long a cell takes that trains for so many seconds."""
    return START + seconds / TRAINING_SHARE


def time_limit(cell: Cell) -> float | None:
    """Seconds after which a cell is stopped, whatever it does; none where it has as long as its steps take."""
    return None if cell.seconds is None else LIMIT * wall(cell.seconds) + PATIENCE


def estimate(cell: Cell, earlier: Iterable[Record] = ()) -> float | None:
    """Seconds: by the budget, or as long as the like took before; None is unknown."""
    if cell.seconds is not None:
        return wall(cell.seconds)

    def like(one: Cell) -> tuple[object, ...]:
        return one.kind, one.task, one.model, one.setting, one.length, one.steps, one.pretrain, one.threads

    known = [
        record.seconds
        for record in earlier
        if record.state == "done" and record.seconds is not None and like(record.cell) == like(cell)
    ]
    return wall(sum(known) / len(known)) if known else None


def total(cells: Sequence[Cell], workers: int, earlier: Iterable[Record] = ()) -> float | None:
    """Seconds of them all, by as many workers; None where one is unknown."""
    earlier = list(earlier)
    seconds = [estimate(cell, earlier) for cell in cells]
    if None in seconds:
        return None
    known = [(cell.kind, each) for cell, each in zip(cells, seconds, strict=True) if each is not None]
    alone = sum(each for kind, each in known if kind == "speed")
    return _longest((each for kind, each in known if kind != "speed"), workers) + alone


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
    """What is not the same, each by its name."""
    one, other = old.plain(), new.plain()
    return [f"{name} {_show(one[name])} there, {_show(other[name])} here" for name in one if one[name] != other[name]]


def _show(value: object) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, list) else "none" if value is None else str(value)


def check_cells(values: Any, source: str) -> list[Cell]:
    """Cells as a file has them."""
    if not isinstance(values, list):
        raise InvalidInput(f"{source} has no list of cells; name another folder")
    try:
        found = [Cell.read(each) for each in values]
    except InvalidInput as error:
        raise InvalidInput(f"{source} has a wrong cell: {error}") from None
    for cell in found:
        if "/" in cell.key or "\0" in cell.key:
            raise InvalidInput(f"{source} has a cell whose name is no folder: {cell.key!r}")
    if len({cell.key for cell in found}) < len(found):
        raise InvalidInput(f"{source} has a cell twice")
    return found


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
