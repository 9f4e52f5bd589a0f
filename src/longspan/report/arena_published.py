"""Of the arena's page: what others have printed, beside ours, and every difference between the two."""

from longspan.arena import published
from longspan.arena.runs.cell import Record
from longspan.arena.runs.efficiency import FUSED, NAIVE
from longspan.report.arena_accuracy import said
from longspan.report.arena_numbers import percent, task_title
from longspan.report.page import Html, table, tag
from longspan.report.palette import title
from longspan.report.results import Results, alike

NEVER = "This printed column is never compared with: see the differences."


def beside(results: Results) -> Html:
    """One part for each setting that was run."""
    known = [setting for setting in results.settings if setting in published.SETTINGS]
    parts = [_setting(results, setting, len(known) > 1) for setting in known]
    later = tag("details", tag("summary", "Later results, for context"), _later())
    return tag("section", tag("h2", "Published, beside ours"), *parts, _speeds(results), later)


def _setting(results: Results, setting: str, several: bool) -> Html:
    tasks = [task for task in results.tasks if task in published.FIVE]
    parts = [tag("h3", f"Setting {setting}")] if several else []
    if setting == "tiny":
        warning = (
            "These two sets of figures are not comparable. tiny has shorter inputs, easier examples, smaller models "
            "and a fraction of the steps; the published figures stand here so that nobody has to look them up, not "
            "to be beaten. Compare ours with the trivial predictors above, and with each other."
        )
        parts.append(tag("p", tag("b", "Not comparable. "), warning, kind="warning"))
    if tasks:
        parts.append(_table(results, setting, tasks, several))
        parts.append(tag("p", f"Published: {published.table(setting).source}.", kind="quiet"))
    else:
        parts.append(tag("p", "None of the tasks of this run is in the published table.", kind="quiet"))
    asked = [task for task in results.tasks if task in published.TITLES]
    listed = tag("ul", *(tag("li", each) for each in published.differences(setting, asked)), *_stand_ins(results))
    return tag("div", *parts, tag("h3", "Every difference in protocol"), listed)


def _stand_ins(results: Results) -> list[Html]:
    """What the data of this very run say of themselves."""
    found: dict[str, None] = {}
    for record in results.accuracy_records:
        for name, value in record.data.items():
            if "stand" in name.lower() and value:
                found[f"{task_title(record.cell.task)}, in this run: {value}"] = None
    return [tag("li", each) for each in found]


def _table(results: Results, setting: str, tasks: list[str], several: bool) -> Html:
    printed = published.table(setting)
    one = Results([r for r in results.records if r.cell.setting == setting]) if several else results
    head: list[object] = ["published model", "ours"]
    for task in tasks:
        head += [tag("span", task_title(task), Html("<br>"), "ours"), "published"]
        head += ["difference"] * published.comparable(setting, task)
    rows = []
    for row in printed.rows:
        model = row.model if row.model in one.models else None
        name = said(f"{row.title} *", row.note) if row.note else row.title
        cells: list[object] = [name, title(model) if model else "–"]
        for task in tasks:
            score = one.score(task, model) if model else None
            cells.append(percent(score.mean) if score else "–")
            value = row.accuracy(task)
            shown = "–" if value is None else f"{value:.2f}"
            if task in printed.never_compared:
                cells.append(said(tag("s", shown), NEVER, "quiet"))
            else:
                cells.append(tag("span", shown, kind="" if published.comparable(setting, task) else "quiet"))
            if published.comparable(setting, task):
                cells.append(f"{100 * score.mean - value:+.1f}" if score and value is not None else "–")
        rows.append(cells)
    return table(head, rows, numbers=range(2, len(head)))


def _speeds(results: Results) -> Html:
    """Ratios to the dense Transformer, printed and ours."""
    dense = published.SPEED[0]
    head: list[object] = ["published model"]
    for number in range(len(published.LENGTHS)):
        head += [tag("span", f"{number + 1}K speed", Html("<br>"), "ours"), "published"]
        head += [tag("span", f"{number + 1}K memory", Html("<br>"), "ours"), "published"]
    rows = []
    for row in published.SPEED:
        cells: list[object] = [said(f"{row.title} *", row.note) if row.note else row.title]
        for number, length in enumerate(published.LENGTHS):
            # The published Transformer holds its n×n weights, so that ours which does the same stands for it.
            mine = _near(results, NAIVE if row.model == FUSED else row.model, length)
            theirs = _near(results, NAIVE, length)
            together = mine is not None and theirs is not None and alike(mine, theirs)
            speeds = _ratio(mine.steps_per_second, theirs.steps_per_second) if together and mine and theirs else "–"
            memories = _ratio(mine.memory, theirs.memory) if together and mine and theirs else "–"
            printed = _ratio(row.steps_per_second[number], dense.steps_per_second[number])
            cells += [speeds, tag("span", printed, kind="quiet")]
            cells += [memories, tag("span", _ratio(row.gigabytes[number], dense.gigabytes[number]), kind="quiet")]
        rows.append(cells)
    ratios = "All as ratios to the dense Transformer of the same table, with its n×n weights in memory."
    note = f"Published: {published.SPEED_SOURCE}. {ratios}"
    inside = (tag("p", note, kind="quiet"), table(head, rows, numbers=range(1, len(head))))
    return tag("details", tag("summary", "Speed and memory, published and ours"), *inside)


def _ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}×" if one and other else "–"


def _near(results: Results, model: str, length: int) -> Record | None:
    """What was measured at a length that is this one but for a few tokens (4000 for 4096)."""
    for record in results.speed_records:
        at = record.cell.length or 0
        if record.cell.model == model and record.state == "done" and abs(at - length) <= 0.05 * length:
            return record
    return None


def _later() -> Html:
    head = ["model", *(task_title(task) for task in (*published.FIVE, "pathx")), "average"]
    rows = []
    for row in published.LATER.rows:
        values = [row.accuracy(task) for task in (*published.FIVE, "pathx")]
        cells: list[object] = [said(f"{row.title} *", row.note) if row.note else row.title]
        cells += ["fail" if value is None else f"{value:.2f}" for value in values]
        rows.append([*cells, f"{row.average:.2f} ({row.averaged} tasks)"])
    inside = (tag("p", f"{published.LATER.source}.", kind="quiet"), table(head, rows, numbers=range(1, len(head))))
    return tag("div", *inside)
