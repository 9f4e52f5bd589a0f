"""Formats of numbers, names and failures on the arena page."""

from collections.abc import Sequence

from longspan.arena.published import TITLES
from longspan.arena.runs.cell import Record
from longspan.report.palette import KINDS, kind, title
from longspan.report.statistics import Score

STATE_NAMES = {"failed": "failed", "memory": "out of memory", "stopped": "stopped"}


def task_title(task: str) -> str:
    return TITLES.get(task, task)


def task_list(tasks: Sequence[str]) -> str:
    return ", ".join(task_title(task) for task in tasks) or "no task"


def name_and_kind(model: str) -> str:
    return f"{title(model)} ({KINDS[kind(model)][0]})"


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def size(value: float) -> str:
    """Bytes with a unit."""
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= bytes_:
            return f"{value / bytes_:.3g} {unit}" if value < 1000 * bytes_ else f"{value / bytes_:.0f} {unit}"
    return f"{value:.0f} B"


def times(ratio: float) -> str:
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.0f}×"


def rate(value: float) -> str:
    return f"{value:.3g}/s"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def watt_hours(joules: float) -> str:
    return f"{joules / 3600:.3g} Wh"


def score_tip(score: Score, model: str, task: str, pretrain: bool) -> str:
    lines = [
        f"{name_and_kind(model)} on {task_title(task)}{', self pre-trained' if pretrain else ''}",
        f"accuracy {100 * score.mean:.2f}",
    ]
    if score.half is not None:
        lines.append(f"95 % interval ± {100 * score.half:.2f} ({score.by})")
    if score.deviation is not None:
        lines.append(f"standard deviation {100 * score.deviation:.2f} over {score.seeds} seeds")
    if score.error is not None:
        lines.append(f"standard error of the test set {100 * score.error:.2f} ({score.count:,} examples)")
    return "\n".join(lines)


def failure(record: Record) -> str:
    """Why a cell has no result, in one line."""
    state = STATE_NAMES.get(record.state, record.state)
    return f"seed {record.cell.seed}: {state}: {record.error or 'no reason recorded'}"
