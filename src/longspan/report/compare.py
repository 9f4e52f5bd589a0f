"""Several runs beside each other: which can be compared, their final metrics, and the page of `longspan compare`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from longspan.errors import InvalidInput, LongspanError, suggest
from longspan.measure.carbon import Assumptions
from longspan.report import charts, palette
from longspan.report.charts import DASHES, ChartAxis, ChartLine, curves
from longspan.report.page import Html, page, table, tag
from longspan.report.statistics import spread_curve
from longspan.report.theme import SCRIPT, STYLE
from longspan.train.history import History, read_history
from longspan.train.seeds import is_set, read_set

COLOURS = ("fixed-pattern", "learned-pattern", "low-rank", "kernel", "memory", "recurrent", "dense", "other")
LONGEST_NAME = 24  # characters of a run's name in a chart
SAME = ("name", "set", "train", "problem")  # options of a task that must be equal for runs to be compared
FREE = ("batch", "max_tokens", "limit")  # options of a task that change no metric's meaning


@dataclass(frozen=True)
class Entry:
    """A line of the comparison: one run, or the finished and unfinished runs of a set of seeds."""

    name: str
    runs: tuple[History, ...]
    notes: tuple[str, ...] = ()

    @property
    def task(self) -> Mapping[str, Any]:
        return self.runs[0].task

    def final(self, metric: str) -> tuple[float, float | None] | None:
        """Mean and standard deviation (n - 1) over the runs that have the metric."""
        values = [run.final[metric] for run in self.runs if metric in run.final]
        return _mean(values)

    def mean(self, name: str) -> float | None:
        """The mean over runs of a number that each run has, such as its speed."""
        values = [value for run in self.runs if (value := getattr(run, name)) is not None]
        return fmean(values) if values else None

    @property
    def energy(self) -> tuple[float, str] | None:
        """Joules of a run (the mean over seeds), and how they are known; None unless all runs know it."""
        records = [run.energy for run in self.runs if run.energy is not None]
        if len(records) < len(self.runs):
            return None
        ways = dict.fromkeys(str(record["by"]) for record in records)
        return fmean(record["joules"] for record in records), " and ".join(ways)

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for run in self.runs for name in run.final))


def _mean(values: Sequence[float]) -> tuple[float, float | None] | None:
    if not values:
        return None
    return fmean(values), stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None


def read_entries(folders: Sequence[Path]) -> tuple[list[Entry], list[str]]:
    """An entry for each folder, and a line for each folder that cannot be read."""
    names = _names(folders)
    entries, problems = [], []
    for folder, name in zip(folders, names):
        try:
            entries.append(_read(folder, name))
        except LongspanError as error:
            problems.append(str(error))
    return entries, problems


def _read(folder: Path, name: str) -> Entry:
    if not is_set(folder):
        run = read_history(folder)
        return Entry(name, (run,), run.notes)
    seeds, runs, notes = read_set(folder), [], []
    for seed in seeds.seeds:
        try:
            run = read_history(seeds.run(seed))
        except LongspanError as error:
            notes.append(f"seed {seed}: {'not begun' if not seeds.run(seed).exists() else error}")
            continue
        runs.append(run)
        notes += [f"seed {seed}: {note}" for note in run.notes]
    if not runs:
        raise InvalidInput(f"{folder}: none of its seeds can be read: {'; '.join(notes)}")
    return Entry(name, tuple(runs), tuple(notes))


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path or, if several are equal, as many parts as tell them apart."""
    paths = [folder.resolve() for folder in folders]
    depth = 1
    while depth < max((len(path.parts) for path in paths), default=1):
        if len({path.parts[-depth:] for path in paths}) == len(set(paths)):
            break
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]


def by_task(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries by what they were trained on: metrics of different data are not compared."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        known = [str(entry.task[key]) for key in SAME if entry.task.get(key) is not None]
        groups.setdefault(", ".join(known) or "unknown task", []).append(entry)
    return groups


def differences(entries: Sequence[Entry]) -> list[str]:
    """Options of the task that differ between entries, so that their metrics may mean different things."""
    keys = dict.fromkeys(key for entry in entries for key in entry.task if key not in FREE)
    lines = []
    for key in keys:
        values = list(dict.fromkeys(repr(entry.task.get(key)) for entry in entries))
        if len(values) > 1:
            lines.append(f"{key} differs: {', '.join(values)}")
    return lines


def check_metric(entries: Sequence[Entry], metric: str) -> None:
    """Refuse a metric that no run has."""
    known = list(dict.fromkeys(name for entry in entries for name in entry.metrics))
    if known and metric not in known:
        raise InvalidInput(f"no run has the metric {metric!r}: {suggest(metric, known)}")


# The page


def compare_page(groups: Mapping[str, Sequence[Entry]], metric: str, problems: Sequence[str]) -> str:
    """The whole page: for each task its charts and tables."""
    count = sum(map(len, groups.values()))
    lede = f"{count} run{'s' * (count != 1)}, by {metric}." + (
        " Runs on different data are in separate sections." if len(groups) > 1 else ""
    )
    how = (
        "Curves are of held-out data unless they say otherwise. A set of seeds is one line, the mean, with a band of "
        "one standard deviation (n - 1) to each side. Time is that of the updates, without evaluations."
    )
    warnings = [tag("p", f"Left out: {line}", css="warning") for line in problems]
    return page(
        "longspan compare",
        tag("header", tag("h1", "longspan compare"), tag("p", lede, css="lede"), tag("p", how, css="quiet"), *warnings),
        *(_section(label, entries, metric) for label, entries in groups.items()),
        style=charts.STYLE + palette.style() + STYLE,
        script=SCRIPT,
    )


def _section(label: str, entries: Sequence[Entry], metric: str) -> Html:
    parts = [tag("h2", label)]
    if lines := differences(entries):
        parts.append(tag("p", "The tasks are not quite the same: " + "; ".join(lines) + ".", css="warning"))
    figures = [
        tag("figure", tag("h3", title), chart)
        for source, by, title in (
            ("evaluations", "step", f"Held-out {metric} over steps"),
            ("evaluations", "seconds", f"Held-out {metric} over time"),
            ("losses", "step", "Training loss over steps (running mean)"),
            ("losses", "seconds", "Training loss over time (running mean)"),
        )
        if (chart := _chart(entries, source, by, metric if source == "evaluations" else "loss")) is not None
    ]
    parts += [tag("div", *figures, css="charts")] if figures else [tag("p", "No run has a curve yet.", css="quiet")]
    parts += [_runs(entries, metric), tag("h3", "All final metrics"), _metrics(entries)]
    return tag("section", *parts)


def lines(entries: Sequence[Entry], source: str, by: str, metric: str) -> list[ChartLine]:
    """A line for each entry with two points or more: the mean over its seeds, with the band of their deviation."""
    drawn = []
    for index, entry in enumerate(entries):
        curves_of_runs = []
        for run in entry.runs:
            points = [(float(getattr(point, by)), point.metrics.get(metric)) for point in getattr(run, source)]
            curves_of_runs.append([(x, y) for x, y in points if y is not None and math.isfinite(y)])
        line = spread_curve(curves_of_runs)
        if not line:
            continue
        seeds = sum(map(bool, curves_of_runs))
        over = f", mean of {seeds} seeds" if seeds > 1 else ""
        tips = [
            f"{y:.4g}{f' ± {deviation:.2g}' if deviation else ''} after "
            f"{f'{x:,.0f} steps' if by == 'step' else short_time(x)}{over}"
            for x, y, deviation in line
        ]
        band = [(y - deviation, y + deviation) for _, y, deviation in line] if seeds > 1 else []
        drawn.append(
            ChartLine(
                entry.name if len(entry.name) <= LONGEST_NAME else f"…{entry.name[1 - LONGEST_NAME :]}",
                COLOURS[index % len(COLOURS)],
                [(x, y) for x, y, _ in line],
                tips,
                DASHES[index // len(COLOURS) % len(DASHES)],
                band,
            )
        )
    return drawn


def _chart(entries: Sequence[Entry], source: str, by: str, metric: str) -> Html | None:
    drawn = lines(entries, source, by, metric)
    if not any(len(line.points) > 1 for line in drawn):
        return None
    across = ChartAxis("steps" if by == "step" else "seconds of updates", _tick)
    return curves(drawn, across, ChartAxis(metric), f"{metric} over {across.title}", width=520, height=340)


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _runs(entries: Sequence[Entry], metric: str) -> Html:
    head = ("run", "seeds", metric, "model", "parameters", "steps", "targets/s", "time", "energy", "")
    rows = [
        [
            tag("span", Html("<i></i>"), entry.name, css=f"named k-{COLOURS[index % len(COLOURS)]}"),
            len(entry.runs),
            tag("b", plus_minus(entry.final(metric))),
            model_name(entry),
            whole(entry.mean("parameters")),
            whole(entry.mean("step")),
            whole(entry.mean("speed")),
            short_time(entry.mean("seconds")),
            short_energy(entry.energy),
            tag("span", "; ".join(entry.notes), css="quiet"),
        ]
        for index, entry in enumerate(entries)
    ]
    runs = table(head, rows, numbers=(1, 2, 4, 5, 6, 7, 8))
    if all(entry.energy is None for entry in entries):
        return runs
    assumed = Assumptions()
    note = f"CO2e is energy × PUE {assumed.pue:.3g} × {assumed.intensity:.3g} kg per kWh (Strubell et al. 2019); "
    return Html(runs + tag("p", note + "longspan energy takes your own figures.", css="quiet"))


def _metrics(entries: Sequence[Entry]) -> Html:
    names = list(dict.fromkeys(name for entry in entries for name in entry.metrics))
    rows = [[name, *(plus_minus(entry.final(name)) for entry in entries)] for name in names]
    return table(("metric", *(entry.name for entry in entries)), rows, numbers=range(1, len(entries) + 1))


def model_name(entry: Entry) -> str:
    """The model of the recipe: its name, or where it was loaded from; and its attention, if it names one."""
    model = entry.runs[0].model
    origin = str(model.get("name") or f"from {Path(str(model.get('from', '?'))).name}")
    attention = model.get("attention")
    kinds = attention if isinstance(attention, list) else [attention] if attention is not None else []
    names = [str(kind.get("name")) if isinstance(kind, dict) else str(kind) for kind in kinds]
    return ", ".join([origin, *dict.fromkeys(names)])


def plus_minus(number: tuple[float, float | None] | None) -> str:
    if number is None:
        return "–"
    mean, deviation = number
    return f"{mean:.4g}" if deviation is None else f"{mean:.4g} ± {deviation:.2g}"


def whole(number: float | None) -> str:
    return "–" if number is None else f"{number:,.0f}"


def short_time(seconds: float | None) -> str:
    if not seconds:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.2f} h"


def short_energy(energy: tuple[float, str] | None) -> str:
    """Energy, CO2 under the usual assumptions, and whether it was measured or modelled."""
    if energy is None:
        return "–"
    grams = 1000 * Assumptions().kilograms(energy[0])
    return f"{energy[0] / 3600:.3g} Wh, {grams:.3g} g CO2e ({energy[1]})"


__all__ = [
    "Entry",
    "by_task",
    "check_metric",
    "compare_page",
    "differences",
    "lines",
    "model_name",
    "plus_minus",
    "read_entries",
    "short_energy",
    "short_time",
    "whole",
]
