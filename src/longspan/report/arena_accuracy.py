"""Of the arena's page: accuracy over speed, accuracies beside trivial predictors, and learning curves."""

from collections.abc import Sequence
from math import hypot
from statistics import fmean

from longspan.arena.runs.cell import Record
from longspan.arena.runs.efficiency import FUSED, NAIVE
from longspan.report.arena_conclusions import average
from longspan.report.arena_numbers import (
    ENDED,
    failure,
    model_said,
    percent,
    rate,
    score_tip,
    size,
    task_list,
    task_title,
    times,
)
from longspan.report.charts import ChartAxis, Circle, Interval, intervals, legend, near, scatter
from longspan.report.page import Html, table, tag, text
from longspan.report.palette import kind, title
from longspan.report.results import Results
from longspan.report.statistics import Score


def said(inside: object, tip: str, kind_: str = "") -> Html:
    """Text that shows more when it is pointed at."""
    named = f' class="{kind_}"' if kind_ else ""
    return Html(f'<span title="{text(tip)}" tabindex="0"{named}>{text(inside)}</span>')


def model_name(results: Results, model: str) -> Html:
    """With its colour, and a flag where it may not be compared."""
    flags = dict.fromkeys(r.flagged for r in results.records if r.cell.model == model and r.flagged)
    flag = said(" ⚑", "\n".join(map(str, flags)), "bad flag") if flags else ""
    return tag("span", Html("<i></i>"), title(model), flag, kind=f"named k-{kind(model)}")


def circles(results: Results) -> tuple[list[Circle], ChartAxis, ChartAxis, list[tuple[str, float]], list[str]]:
    """The chart that the benchmark is known for: circles, axes, lines of trivial predictors, and who is not in it."""
    found, missing = [], []
    relative = any(each.speed_ratio for each in results.relatives)
    for each in results.relatives:
        # The dense model that is not fused is the same function: what it costs is another matter.
        trained = FUSED if each.model == NAIVE else each.model
        mean, pretrained = results.average(trained), results.average(each.model, True)
        speed = each.speed_ratio if relative else each.steps_per_second
        if mean is None or speed is None:
            lacks = [task_title(task) for task in results.averaged if results.score(task, each.model) is None] or [
                "the measurement of speed"
            ]
            if any(record.cell.model == each.model for record in results.accuracy_records):
                missing.append(f"{title(each.model)} (lacks {', '.join(lacks)})")
            continue
        tip = [model_said(each.model)]
        tip += ["the same function as the fused Transformer, and its accuracy"] if trained != each.model else []
        tip += [f"average accuracy {100 * mean:.2f} over {task_list(results.averaged)}"]
        if pretrained is not None:
            tip.append(f"self pre-trained {100 * pretrained:.2f}")
        if each.steps_per_second:
            tip.append(f"speed {rate(each.steps_per_second)}{_of(each.speed_ratio)}")
        tip.append(f"memory {size(each.memory)}{_of(each.memory_ratio)}" if each.memory else "memory not measured")
        tip.append(f"({each.by})")
        after = None if pretrained is None else 100 * pretrained
        found.append(Circle(title(each.model), kind(each.model), speed, 100 * mean, each.memory, "\n".join(tip), after))
    across = ChartAxis(
        "speed, relative to the dense Transformer" if relative else "speed, steps per second",
        times_short if relative else lambda value: f"{value:g}",
        factors=True,
        holds=(1.0,) if relative else (),
    )
    lines = []
    per_task = [results.baselines(task) for task in results.averaged]
    if per_task and all(per_task):
        lines = [("best trivial predictor", 100 * fmean(max(each.values()) for each in per_task))]
        if all("majority" in each for each in per_task):
            majority = 100 * fmean(each["majority"] for each in per_task)
            lines = [("majority class", majority)] + (lines if lines[0][1] > majority + 0.05 else [])
    return found, across, ChartAxis("average accuracy, %"), lines, missing


def times_short(value: float) -> str:
    return f"{value:g}×"


def _of(ratio: float | None) -> str:
    return f", {times(ratio)} the dense Transformer's" if ratio is not None else ""


def overview(results: Results) -> Html:
    found, across, up, lines, missing = circles(results)
    if not found:
        said_ = (
            "No model has an accuracy on every task and a measured speed, so there is no chart of one over the other."
        )
        return tag("section", tag("h2", "Accuracy over speed"), tag("p", said_, kind="quiet"))
    by = results.relatives[0].by
    notes = [f"Average accuracy over {task_list(results.averaged)}; speed of {by}; the area of a circle is memory."]
    if any(circle.pretrained is not None for circle in found):
        notes.append("A dashed ring is the same model after self pre-training, at the same budget.")
    if any(circle.memory is None for circle in found):
        notes.append("A dashed circle has no measured memory.")
    heights = [v for circle in found for v in (circle.accuracy, circle.pretrained) if v is not None]
    outside = [f"{name} {value:.1f}" for name, value in near(heights, lines)[1]]
    if outside:
        notes.append(f"Outside of the chart: {', '.join(outside)}.")
    if missing:
        notes.append(f"Not shown: {'; '.join(missing)}.")
    return tag(
        "section",
        tag("h2", "Accuracy over speed"),
        tag("p", " ".join(notes), kind="quiet"),
        legend([circle.kind for circle in found]),
        scatter(found, across, up, lines=lines, size=size, kind="wide"),
        scatter(found, across, up, lines=lines, size=size, width=400, height=440, kind="narrow"),
    )


def interval_rows(results: Results, task: str) -> tuple[list[Interval], list[tuple[str, float]]]:
    rows = []
    for model in results.models:
        if not (results.cells(task, model) or results.cells(task, model, True)):
            continue
        marks: list[tuple[float, float | None, str] | None] = []
        for pretrain in (False, True):
            score = results.score(task, model, pretrain)
            if score is None:
                marks.append(None)
                continue
            half = None if score.half is None else 100 * score.half
            marks.append((100 * score.mean, half, score_tip(score, model, task, pretrain)))
        failed = "\n".join(failure(r) for r in results.cells(task, model) if r.state != "done")
        rows.append(Interval(title(model), kind(model), marks, failed))
    return rows, trivial(results, task)


def trivial(results: Results, task: str) -> list[tuple[str, float]]:
    """What trivial predictors reach, in percent, the lowest first."""
    found = ((name.replace("_", " "), 100 * value) for name, value in results.baselines(task).items())
    return sorted(found, key=lambda each: each[1])


def accuracies(results: Results) -> Html:
    charts = []
    for task in results.tasks:
        rows, lines = interval_rows(results, task)
        chart = intervals(rows, lines, f"accuracies on {task_title(task)} beside trivial predictors")
        charts.append(tag("figure", tag("h3", task_title(task)), chart))
    kinds = [kind(model) for model in results.models]
    notes = [
        "Test accuracy in percent at the step that was best on held-out examples: the mean over seeds with its 95 % "
        "interval (Student's t over seeds; of one seed, binomial over the test). Dashed lines are trivial predictors "
        "on the same test."
    ]
    if results.pretrained:
        notes.append("A dashed ring is self pre-training at the same budget.")
    signs = (
        "▲ above every trivial predictor by more than three standard errors of the test; △ above the majority "
        "class only; ○ not above the majority class. ± is half of the 95 % interval, s the standard deviation over "
        "seeds. Bold: the highest, and all that do not differ from it by more than the noise of both; nothing is bold "
        "where that is every model. The noise of a model is the wider of its intervals over seeds and over the test. "
        "Hover, or reach a figure by the keyboard, for more digits."
    )
    flagged = dict.fromkeys((title(r.cell.model), r.flagged) for r in results.accuracy_records if r.flagged)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in flagged)
    free = f"⚑ {reasons}. By the benchmark's rules this makes the comparison a free-for-all." if flagged else ""
    return tag(
        "section",
        tag("h2", "Accuracy"),
        tag("p", " ".join(notes), kind="quiet"),
        legend(kinds),
        tag("div", *charts, kind="charts"),
        _table(results),
        tag("p", signs, kind="quiet"),
        tag("p", free, kind="quiet") if free else Html(""),
        reasons_of([record for record in results.accuracy_records if record.state != "done"]),
    )


def reasons_of(records: Sequence[Record]) -> Html:
    """Why cells have no result, as text: what shows only when it is pointed at is not there for everyone."""
    if not records:
        return Html("")
    lines = []
    for record in records:
        cell = record.cell
        where = f"length {cell.length:,}" if cell.length is not None else f"{task_title(cell.task)}, seed {cell.seed}"
        where += ", self pre-trained" * cell.pretrain
        why = record.error or "no reason was recorded"
        lines.append(tag("li", f"{title(cell.model)}, {where}: {ENDED.get(record.state, record.state)}: {why}"))
    return tag("div", tag("h3", "Cells without a result"), tag("ul", *lines), kind="reasons")


def _table(results: Results) -> Html:
    forms = [False, True] if results.pretrained else [False]
    head: list[object] = ["model", "parameters"]
    for task in results.tasks:
        head += [task_title(task)] + [tag("span", task_title(task), Html("<br>"), "self pre-trained")] * (
            len(forms) - 1
        )
    averaged = f"the mean over {task_list(results.averaged)}"
    head += [said("average", averaged)] + [said("average, self pre-trained", averaged)] * (len(forms) - 1)
    rows: list[list[object]] = []
    best = {(task, form): _best(results, task, form) for task in results.tasks for form in forms}
    first = {form: _best_averages(results, form) for form in forms}
    for model in results.models:
        if not any(record.cell.model == model for record in results.accuracy_records):
            continue
        row: list[object] = [model_name(results, model), _parameters(results, model)]
        row += [_cell(results, task, model, form, best[task, form]) for task in results.tasks for form in forms]
        for form in forms:
            mean = results.average(model, form)
            row.append("–" if mean is None else tag("b" if model in first[form] else "span", percent(mean)))
        rows.append(row)
    names = dict.fromkeys(name for task in results.tasks for name in results.baselines(task))
    for name in names:
        row = [tag("span", f"trivial: {name.replace('_', ' ')}", kind="quiet"), ""]
        values = [results.baselines(task).get(name) for task in results.tasks]
        for value in values:
            row += ["–" if value is None else percent(value)] + [""] * (len(forms) - 1)
        inside = [results.baselines(task).get(name) for task in results.averaged]
        whole = [value for value in inside if value is not None]
        row += [percent(fmean(whole)) if whole and len(whole) == len(inside) else "–"] + [""] * (len(forms) - 1)
        rows.append(row)
    made = table(head, rows, numbers=range(1, len(head)))
    return Html(f'{made}<p class="quiet">The average is {text(averaged)}; none where one of them is missing.</p>')


def _parameters(results: Results, model: str) -> Html:
    """The range over tasks."""
    mine = [r for r in results.accuracy_records if r.cell.model == model and r.parameters]
    counts = sorted({r.parameters for r in mine if r.parameters})
    if not counts:
        return Html("–")
    shown = " – ".join(dict.fromkeys(_count(value) for value in (counts[0], counts[-1])))
    lines = dict.fromkeys(
        f"{task_title(r.cell.task)}: {r.parameters:,}"
        + (f", {r.parameters_ratio:.2f} times the base Transformer's" if r.parameters_ratio else "")
        for r in mine
    )
    return said(shown, "\n".join(lines))


def _count(value: int) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} K" if value >= 1000 else str(value)


def _best(results: Results, task: str, pretrain: bool) -> set[str]:
    """The highest and those that do not differ from it beyond the noise; none where that is all of them."""
    scores = {model: s for model in results.models if (s := results.score(task, model, pretrain)) is not None}
    if not scores:
        return set()
    highest = max(scores.values(), key=lambda score: score.mean)
    found = {model for model, score in scores.items() if not highest.separate(score)}
    return found if len(found) < len(scores) else set()


def _best_averages(results: Results, pretrain: bool) -> set[str]:
    known = {model: each for model in results.models if (each := average(results, model, pretrain)) is not None}
    if not known:
        return set()
    mean, noise = max(known.values(), key=lambda each: each[0])
    found = {m for m, (own, other) in known.items() if mean - own <= hypot(noise or 0.0, other or 0.0)}
    return found if len(found) < len(known) else set()


def _cell(results: Results, task: str, model: str, pretrain: bool, best: set[str]) -> Html:
    cells, score = results.cells(task, model, pretrain), results.score(task, model, pretrain)
    wrong = [record for record in cells if record.state != "done"]
    reasons = "\n".join(failure(record) for record in wrong)
    if score is None:
        return said(_ended(wrong), reasons, "bad") if wrong else Html("–")
    half = "" if score.half is None else tag("small", f" ± {100 * score.half:.1f}")
    number = tag("b", percent(score.mean)) if model in best else percent(score.mean)
    sign, meaning = _sign(score, results.baselines(task))
    below = f"s {100 * score.deviation:.2f}, {score.seeds} seeds" if score.deviation is not None else "1 seed"
    lost = said(f"{len(wrong)} of {len(cells)} {_ended(wrong)}", reasons, "bad") if wrong else ""
    tip = score_tip(score, model, task, pretrain) + (f"\n{meaning}" if meaning else "")
    return tag(
        "div",
        said(Html(f"{text(number)}{half} {sign}"), tip),
        tag("small", Html("<br>"), below, kind="quiet"),
        tag("small", Html("<br>"), lost) if lost else "",
    )


def _ended(records: Sequence[Record]) -> str:
    return " or ".join(dict.fromkeys(ENDED.get(record.state, record.state) for record in records))


def _sign(score: Score, baselines: dict[str, float]) -> tuple[str, str]:
    if not baselines or score.error is None:
        return "", ""
    if all(score.above(value) for value in baselines.values()):
        return "▲", "above every trivial predictor by more than three standard errors"
    if "majority" in baselines and score.above(baselines["majority"]):
        return "△", "above the majority class, not above every trivial predictor"
    return "○", "not above the majority class by three standard errors"
