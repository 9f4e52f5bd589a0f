"""The plan that `longspan arena --dry-run` prints, and the command that resumes a run."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.cli.inputs import print_json

if TYPE_CHECKING:
    from longspan.arena.runs.cell import Cell, Record
    from longspan.arena.runs.grid import Arguments


def print_plan(
    folder: Path,
    cells: "Sequence[Cell]",
    todo: "Sequence[Cell]",
    records: "Sequence[Record]",
    workers: int,
    given: "Arguments",
    json: bool,
) -> None:
    """Print which cells would run and for how long; as JSON, every cell."""
    from longspan.arena import settings
    from longspan.arena.runs.grid import estimate, spell, total

    whole = total(todo, workers, records)
    open_keys = {cell.key for cell in todo}
    if json:
        rows = [
            {**cell.plain(), "key": cell.key, "run": cell.key in open_keys, "estimate": estimate(cell, records)}
            for cell in cells
        ]
        plan: dict[str, Any] = {"arguments": given.plain(), "workers": workers, "estimate": whole, "cells": rows}
        print_json({"out": str(folder), **plan})
        return
    groups: dict[tuple[str, bool], list[Cell]] = {}
    for cell in cells:
        what = f"speed at length {cell.length:,}" if cell.kind == "speed" else cell.task
        groups.setdefault((what, cell.pretrain), []).append(cell)
    for (what, pretrain), group in groups.items():
        names = ", ".join(dict.fromkeys(cell.model for cell in group))
        first, steps = group[0], "by the speed protocol"
        if first.seconds is not None:
            steps = f"{spell(first.seconds)} each"
            if first.kind == "accuracy" and (sized := settings.find(first.setting, first.task).training).enough:
                steps += f", at most {sized.steps:,} steps"
        elif first.kind == "accuracy":
            steps = f"{settings.find(first.setting, first.task).training.steps:,} steps each"
        ended = sum(cell.key not in open_keys for cell in group)
        before = f", {ended} finished already" if ended else ""
        print(f"{what}{', pre-trained' * pretrain}: {len(group)} cells, {steps}{before}: {names}")
    training = sum(cell.kind == "accuracy" for cell in cells)
    print(f"{len(cells)} cells, {training} for accuracy and {len(cells) - training} for speed; {len(todo)} to run")
    where = f"{workers} worker{'s' * (workers > 1)} of {given.threads} thread{'s' * (given.threads > 1)}"
    print(f"{where}: {'time unknown: no such cell was run here before' if whole is None else f'about {spell(whole)}'}")
    print(f"results would go to {folder}" + ("" if given.data is None else f"; data from {given.data}"))


def command(
    given: "Arguments", folder: Path, data: Path | None, workers: int | None, runner: str, address: str | None
) -> str:
    """The command that resumes this run."""
    from longspan.arena.runs.grid import LENGTHS
    from longspan.arena.tasks.registry import TASKS
    from longspan.attention.registry import ATTENTION

    tasks = ",".join(TASKS.source(name) or name if name in TASKS else name for name in given.tasks)
    models = ",".join(ATTENTION.source(name) or name if name in ATTENTION else name for name in given.models)
    parts = ["longspan", "arena", "--tasks", tasks, "--models", models]
    parts += ["--setting", given.setting, "--seeds", str(given.seeds)]
    parts += [] if given.budget is None else ["--budget", f"{given.budget:.12g}s"]
    parts += ["--pretrain"] if given.pretrain else []
    if not given.lengths:
        parts += ["--no-speed"]
    elif given.lengths != LENGTHS:
        parts += ["--lengths", ",".join(map(str, given.lengths))]
    parts += ["--threads", str(given.threads)] if given.threads != 1 else []
    parts += ["--out", str(folder)]
    parts += [] if data is None else ["--data", str(data)]
    parts += [] if workers is None else ["--workers", str(workers)]
    parts += ["--runner", runner] if runner != "local" else []
    parts += [] if address is None else ["--address", address]
    return shlex.join(parts)


__all__ = ["command", "print_plan"]
