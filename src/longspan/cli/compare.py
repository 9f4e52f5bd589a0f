"""`longspan compare`: one table, and one page, of several runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from longspan.cli.inputs import AsJson, check_writable, print_json
from longspan.cli.tables import output
from longspan.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from longspan.report.compare import Entry


def compare(
    *runs: Path,
    metric: Annotated[str, Parameter(help="the metric to compare and draw (default: loss)")] = "loss",
    html: Annotated[Path | None, Parameter(help="write a page with curves and tables to this file")] = None,
    json: AsJson = False,
) -> int:
    """Compare training runs: final metrics, parameters, speed, time and energy; with --html also the curves.

    A folder of `longspan train --seeds N` is one line: the mean and the standard deviation over its seeds. Runs on
    different data are put into separate tables. Unfinished and damaged runs are shown as far as they go.

    **Examples:**

        longspan compare runs/wikitext2-transformer runs/wikitext2-linear
        longspan compare runs/bert-sst2 runs/gpt-sst2 --metric accuracy --html compare.html

    Parameters
    ----------
    runs
        The folders of runs, or of sets of seeds.
    """
    from longspan import files
    from longspan.report.compare import by_task, check_metric, compare_page, read_entries

    if not runs:
        raise InvalidOption("give the folder of one run at least")
    check_writable(html)
    entries, problems = read_entries(list(dict.fromkeys(runs)))
    if not entries:
        raise InvalidInput(problems[0] if len(problems) == 1 else f"none of these can be read: {'; '.join(problems)}")
    check_metric(entries, metric)
    groups = by_task(entries)
    if html is not None:
        files.write_text(html, compare_page(groups, metric, problems))
    if json:
        tasks = [{"task": label, "runs": [_record(entry) for entry in group]} for label, group in groups.items()]
        print_json({"metric": metric, "tasks": tasks, "problems": problems})
    else:
        _show(groups, metric, problems)
        if html is not None:
            print(f"\n{html}")
    return 0


def _record(entry: "Entry") -> dict[str, Any]:
    from longspan.report.compare import model_name

    figures = {name: entry.final(name) for name in entry.metrics}
    energy = entry.energy
    return {
        "name": entry.name,
        "runs": [{"run": str(run.folder), "seed": run.seed, "finished": run.finished} for run in entry.runs],
        "model": model_name(entry),
        "metrics": {
            name: {"mean": numbers[0], "deviation": numbers[1]} for name, numbers in figures.items() if numbers
        },
        "parameters": entry.mean("parameters"),
        "steps": entry.mean("step"),
        "targets_per_second": entry.mean("speed"),
        "seconds": entry.mean("seconds"),
        "energy": None if energy is None else {"joules": energy[0], "by": energy[1]},
        "notes": list(entry.notes),
    }


def _show(groups: "dict[str, list[Entry]]", metric: str, problems: list[str]) -> None:
    from longspan.report.compare import differences, model_name, plus_minus, short_energy, short_time, whole

    console = output()
    for number, (label, entries) in enumerate(groups.items()):
        console.print(("\n" if number else "") + label, markup=False, style="bold")
        for line in differences(entries):
            console.print(f"the tasks are not quite the same: {line}", markup=False)
        table = Table(box=None, pad_edge=False)
        for name in ("run", "seeds", metric, "model", "parameters", "steps", "targets/s", "time", "energy", "notes"):
            table.add_column(name, justify="left" if name in ("run", "model", "notes") else "right")
        for entry in entries:
            cells = [
                entry.name,
                str(len(entry.runs)),
                plus_minus(entry.final(metric)),
                model_name(entry),
                whole(entry.mean("parameters")),
                whole(entry.mean("step")),
                whole(entry.mean("speed")),
                short_time(entry.mean("seconds")),
                short_energy(entry.energy),
                "; ".join(entry.notes),
            ]
            table.add_row(*map(escape, cells))
        console.print(table)
        others = [name for name in dict.fromkeys(n for entry in entries for n in entry.metrics) if name != metric]
        if others:
            console.print(f"other metrics (--metric): {', '.join(others)}", markup=False)
    for line in problems:
        console.print(f"left out: {line}", markup=False)


__all__ = ["compare"]
