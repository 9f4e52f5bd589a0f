"""The results that `longspan arena` prints at the end: tables, or JSON."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from longspan.cli.tables import short_bytes
from longspan.cli.terminal import Console

if TYPE_CHECKING:
    from longspan.arena.runs.cell import Record
    from longspan.report.results import Results

NOT_COMPARABLE = "tiny is for machines without an accelerator: its results are not comparable with published ones."


def print_results(console: Console, results: "Results") -> None:
    """Print accuracies and trivial baselines, what they show, speed and memory, and the cells that failed."""
    from longspan.report.arena_conclusions import conclusions, learned

    if results.tasks:
        console.print("test accuracy, %: mean ± standard deviation over seeds", soft_wrap=True)
        console.print(_accuracies(results))
        for sentence in (learned(results), *conclusions(results)):
            if sentence:
                console.print(sentence, markup=False, soft_wrap=True)
    if "tiny" in results.settings:
        console.print(NOT_COMPARABLE, markup=False, soft_wrap=True)
    if results.lengths:
        _print_speeds(console, results)
    failed = [record for record in results.records if record.state != "done"]
    for record in failed:
        line = f"{record.cell.key}: {record.state}: {record.error or 'no reason given'}"
        console.print(line, markup=False, style="red", soft_wrap=True)
    if failed:
        console.print(f"{len(failed)} of {len(results.records)} cells have no result; --retry runs them again")


def _accuracies(results: "Results") -> Table:
    columns = [(task, pretrain) for task in results.tasks for pretrain in (False, True)]
    columns = [(task, pretrain) for task, pretrain in columns if any(_cells(results, task, pretrain))]
    table = Table("model", box=None, padding=(0, 2, 0, 0))
    for task, pretrain in columns:
        table.add_column(f"{task}, pre-trained" if pretrain else task, justify="right")
    baselines = {task: results.baselines(task) for task in results.tasks}
    for name in dict.fromkeys(name for of_task in baselines.values() for name in of_task):
        values = (baselines[task].get(name) for task, _ in columns)
        cells = ("" if value is None else f"{100 * value:.1f}" for value in values)
        table.add_row(f"({name.replace('_', ' ')})", *cells, style="dim")
    for model in results.models:
        if any(record.cell.model == model for record in results.accuracy_records):
            table.add_row(model, *(_accuracy(results, task, model, pretrain) for task, pretrain in columns))
    return table


def _cells(results: "Results", task: str, pretrain: bool) -> "list[Record]":
    return [
        record for record in results.accuracy_records if (record.cell.task, record.cell.pretrain) == (task, pretrain)
    ]


def _accuracy(results: "Results", task: str, model: str, pretrain: bool) -> str:
    score, cells = results.score(task, model, pretrain), results.cells(task, model, pretrain)
    if score is None:
        return cells[-1].state if cells else ""
    deviation = "" if score.deviation is None else f" ± {100 * score.deviation:.1f}"
    flag = "*" if any(cell.flagged for cell in cells) else ""
    return f"{100 * score.mean:.1f}{deviation}{flag}"


def _print_speeds(console: Console, results: "Results") -> None:
    from longspan.arena.runs import speed

    measured = [model for model in results.models if any(results.speed(model, n) for n in results.lengths)]
    against = [name for name in (speed.NAIVE, speed.FUSED) if name in measured]
    rates, memory = (Table("model", box=None, padding=(0, 2, 0, 0)) for _ in range(2))
    for table in (rates, memory):
        for length in results.lengths:
            table.add_column(f"{length:,}", justify="right")
    for model in measured:
        records = [results.speed(model, length) for length in results.lengths]
        bases = [[results.speed(name, length) for name in against] for length in results.lengths]
        rates.add_row(model, *(_rate(record, base) for record, base in zip(records, bases)))
        memory.add_row(model, *(_memory(record) for record in records))
    ratio = f" (relative to {', to '.join(against)})" if against else ""
    console.print(f"training steps per second by length{ratio}", soft_wrap=True)
    console.print(rates)
    console.print("peak memory of a training step by length", soft_wrap=True)
    console.print(memory)


def _rate(record: "Record | None", bases: "Iterable[Record | None]") -> str:
    if record is None or record.steps_per_second is None:
        return "" if record is None else record.state
    rate = record.steps_per_second
    known = [None if base is None or not base.steps_per_second else rate / base.steps_per_second for base in bases]
    ratios = ", ".join("–" if times is None else f"{times:.2g}×" for times in known)
    return f"{rate:.3g} ({ratios})" if ratios else f"{rate:.3g}"


def _memory(record: "Record | None") -> str:
    return "" if record is None or record.memory is None else short_bytes(record.memory)


def summary(folder: Path, results: "Results", report: Path) -> dict[str, Any]:
    """The JSON of --json: means, deviations, what they show, baselines, speeds, failures."""
    from longspan.report.arena_conclusions import conclusions, learned

    accuracies = []
    for task in results.tasks:
        for model in results.models:
            for pretrain in (False, True):
                score = results.score(task, model, pretrain)
                if score is not None:
                    numbers = {"mean": score.mean, "deviation": score.deviation, "seeds": score.seeds}
                    row: dict[str, Any] = {"task": task, "model": model, "pretrain": pretrain, **numbers}
                    if not pretrain:
                        row |= {"groups": results.groups(task, model), "state_bytes": results.state_bytes(task, model)}
                    accuracies.append(row)
    speeds = [
        {
            "model": record.cell.model,
            "length": record.cell.length,
            "steps_per_second": record.steps_per_second,
            "memory": record.memory,
        }
        for record in results.speed_records
        if record.state == "done"
    ]
    failed = [
        {"cell": record.cell.key, "state": record.state, "error": record.error}
        for record in results.records
        if record.state != "done"
    ]
    return {
        "out": str(folder),
        "settings": results.settings,
        "comparable": "tiny" not in results.settings,
        "cells": len(results.records),
        "learned": learned(results),
        "conclusions": conclusions(results),
        "accuracy": accuracies,
        "baselines": {task: results.baselines(task) for task in results.tasks},
        "speed": speeds,
        "failed": failed,
        "report": str(report),
    }


__all__ = ["NOT_COMPARABLE", "print_results", "summary"]
