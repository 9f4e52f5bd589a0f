"""Section of the arena page: published results next to ours, and every difference in protocol."""

from longspan.arena import published
from longspan.arena.runs.cell import Record
from longspan.arena.runs.efficiency import FUSED, NAIVE, conditions
from longspan.report.arena_accuracy import with_tip
from longspan.report.arena_numbers import percent, task_title
from longspan.report.page import Html, table, tag
from longspan.report.palette import title
from longspan.report.results import Results

NEVER = "This published column is never compared with: see the differences in protocol."


def published_section(results: Results) -> Html:
    """One part for each setting in the results."""
    known = [setting for setting in results.settings if setting in published.SETTINGS]
    parts = [_setting(results, setting, len(known) > 1) for setting in known]
    later = tag("details", tag("summary", "Later results, for context"), _later())
    return tag("section", tag("h2", "Published results and ours"), *parts, _speeds(results), later)


def _setting(results: Results, setting: str, several: bool) -> Html:
    tasks = [task for task in results.tasks if task in published.FIVE]
    parts = [tag("h3", f"Setting {setting}")] if several else []
    if setting == "tiny":
        warning = (
            "The published numbers are here for reference only. The setting tiny has shorter inputs, easier examples, "
            "smaller models and a fraction of the steps. Compare our results with the trivial predictors above, and "
            "with each other."
        )
        parts.append(tag("p", tag("b", "Not comparable. "), warning, css="warning"))
    if tasks:
        parts.append(_table(results, setting, tasks, several))
        parts.append(tag("p", f"Published: {published.table(setting).source}.", css="quiet"))
    else:
        parts.append(tag("p", "The published table has none of the tasks of this run.", css="quiet"))
    known = [task for task in results.tasks if task in published.TITLES]
    items = [tag("li", difference) for difference in published.differences(setting, known)]
    return tag("div", *parts, tag("h3", "Every difference in protocol"), tag("ul", *items, *_stand_ins(results)))


def _stand_ins(results: Results) -> list[Html]:
    """Notes in the data manifests of this run about stand-in data."""
    notes: dict[str, None] = {}
    for record in results.accuracy_records:
        for name, value in record.data.items():
            if "stand" in name.lower() and value:
                notes[f"{task_title(record.cell.task)}, in this run: {value}"] = None
    return [tag("li", note) for note in notes]


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
        name = with_tip(f"{row.title} *", row.note) if row.note else row.title
        cells: list[object] = [name, title(model) if model else "–"]
        for task in tasks:
            score = one.score(task, model) if model else None
            cells.append(percent(score.mean) if score else "–")
            value = row.accuracy(task)
            shown = "–" if value is None else f"{value:.2f}"
            if task in printed.never_compared:
                cells.append(with_tip(tag("s", shown), NEVER, "quiet"))
            else:
                cells.append(tag("span", shown, css="" if published.comparable(setting, task) else "quiet"))
            if published.comparable(setting, task):
                cells.append(f"{100 * score.mean - value:+.1f}" if score and value is not None else "–")
        rows.append(cells)
    return table(head, rows, numbers=range(2, len(head)))


def _speeds(results: Results) -> Html:
    """Ratios to the dense Transformer, published and ours."""
    speeds = published.speeds()
    dense = speeds.rows[0]
    head: list[object] = ["published model"]
    for number in range(len(speeds.lengths)):
        head += [tag("span", f"{number + 1}K speed", Html("<br>"), "ours"), "published"]
        head += [tag("span", f"{number + 1}K memory", Html("<br>"), "ours"), "published"]
    rows = []
    for row in speeds.rows:
        cells: list[object] = [with_tip(f"{row.title} *", row.note) if row.note else row.title]
        for number, length in enumerate(speeds.lengths):
            # The published Transformer keeps its n×n weights in memory, as our unfused one does.
            record = _record_near(results, NAIVE if row.model == FUSED else row.model, length)
            base = _record_near(results, NAIVE, length)
            speed, memory = "–", "–"
            if record is not None and base is not None and conditions(record) == conditions(base):
                speed = _ratio(record.steps_per_second, base.steps_per_second)
                memory = _ratio(record.memory, base.memory)
            printed = _ratio(row.steps_per_second[number], dense.steps_per_second[number])
            cells += [speed, tag("span", printed, css="quiet")]
            cells += [memory, tag("span", _ratio(row.gigabytes[number], dense.gigabytes[number]), css="quiet")]
        rows.append(cells)
    ratios = "All numbers are ratios to the dense Transformer with n×n weights in memory, ours to ours."
    note = f"Published: {speeds.source}. {ratios}"
    content = (tag("p", note, css="quiet"), table(head, rows, numbers=range(1, len(head))))
    return tag("details", tag("summary", "Speed and memory, published and ours"), *content)


def _ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}×" if one and other else "–"


def _record_near(results: Results, model: str, length: int) -> Record | None:
    """The speed cell within 5 % of a length (4000 for 4096)."""
    for record in results.speed_records:
        at = record.cell.length or 0
        if record.cell.model == model and record.state == "done" and abs(at - length) <= 0.05 * length:
            return record
    return None


def _later() -> Html:
    head = ["model", *(task_title(task) for task in (*published.FIVE, "pathx")), "average"]
    rows = []
    later = published.later()
    for row in later.rows:
        values = [row.accuracy(task) for task in (*published.FIVE, "pathx")]
        cells: list[object] = [with_tip(f"{row.title} *", row.note) if row.note else row.title]
        cells += ["fail" if value is None else f"{value:.2f}" for value in values]
        rows.append([*cells, f"{row.average:.2f} ({row.averaged} tasks)"])
    return tag("div", tag("p", f"{later.source}.", css="quiet"), table(head, rows, numbers=range(1, len(head))))
