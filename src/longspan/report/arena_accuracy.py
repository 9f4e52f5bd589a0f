"""Sections of the arena page: accuracy over speed, and accuracies next to trivial predictors."""

from collections.abc import Sequence
from math import hypot
from statistics import fmean

from longspan.arena.runs.cell import Record
from longspan.arena.runs.efficiency import FUSED, NAIVE
from longspan.report.arena_conclusions import average_and_noise
from longspan.report.arena_numbers import (
    STATE_NAMES,
    failure,
    name_and_kind,
    percent,
    rate,
    score_tip,
    size,
    task_list,
    task_title,
    times,
)
from longspan.report.charts import ChartAxis, Circle, Interval, intervals, legend, scatter, split_lines
from longspan.report.page import Html, table, tag, text
from longspan.report.palette import kind, title
from longspan.report.results import Results
from longspan.report.statistics import Score


def with_tip(content: object, tip: str, css: str = "") -> Html:
    """Text with a tooltip."""
    named = f' class="{css}"' if css else ""
    return Html(f'<span title="{text(tip)}" tabindex="0"{named}>{text(content)}</span>')


def model_name(results: Results, model: str) -> Html:
    """A model's name with its colour, and a flag if it may not be compared."""
    flags = dict.fromkeys(r.flagged for r in results.records if r.cell.model == model and r.flagged)
    flag = with_tip(" ⚑", "\n".join(map(str, flags)), "bad flag") if flags else ""
    return tag("span", Html("<i></i>"), title(model), flag, css=f"named k-{kind(model)}")


def circles(results: Results) -> tuple[list[Circle], ChartAxis, ChartAxis, list[tuple[str, float]], list[str]]:
    """The benchmark's best-known chart: circles, axes, lines of trivial predictors, and the models left out."""
    shown, missing = [], []
    use_ratios = any(relative.speed_ratio for relative in results.relatives)
    for relative in results.relatives:
        # The unfused dense model is the same function as the fused one, at another cost.
        trained = FUSED if relative.model == NAIVE else relative.model
        mean, pretrained = results.average(trained), results.average(relative.model, True)
        speed = relative.speed_ratio if use_ratios else relative.steps_per_second
        if mean is None or speed is None:
            lacks = [task_title(task) for task in results.averaged if results.score(task, relative.model) is None] or [
                "a measured speed"
            ]
            if any(record.cell.model == relative.model for record in results.accuracy_records):
                missing.append(f"{title(relative.model)} (lacks {', '.join(lacks)})")
            continue
        tip = [name_and_kind(relative.model)]
        tip += ["the same function as the fused Transformer, with its accuracy"] if trained != relative.model else []
        tip += [f"average accuracy {100 * mean:.2f} over {task_list(results.averaged)}"]
        if pretrained is not None:
            tip.append(f"self pre-trained {100 * pretrained:.2f}")
        if relative.steps_per_second:
            tip.append(f"speed {rate(relative.steps_per_second)}{_to_dense(relative.speed_ratio)}")
        memory = relative.memory
        tip.append(f"memory {size(memory)}{_to_dense(relative.memory_ratio)}" if memory else "memory not measured")
        tip.append(f"({relative.by})")
        after = None if pretrained is None else 100 * pretrained
        name = title(relative.model)
        shown.append(Circle(name, kind(relative.model), speed, 100 * mean, memory, "\n".join(tip), after))
    across = ChartAxis(
        "speed, relative to the dense Transformer" if use_ratios else "speed, steps per second",
        (lambda value: f"{value:g}×") if use_ratios else (lambda value: f"{value:g}"),
        factors=True,
        holds=(1.0,) if use_ratios else (),
    )
    lines = []
    per_task = [results.baselines(task) for task in results.averaged]
    if per_task and all(per_task):
        lines = [("best trivial predictor", 100 * fmean(max(scores.values()) for scores in per_task))]
        if all("majority" in scores for scores in per_task):
            majority = 100 * fmean(scores["majority"] for scores in per_task)
            lines = [("majority class", majority)] + (lines if lines[0][1] > majority + 0.05 else [])
    return shown, across, ChartAxis("average accuracy, %"), lines, missing


def _to_dense(ratio: float | None) -> str:
    return f", {times(ratio)} the dense Transformer's" if ratio is not None else ""


def accuracy_over_speed_chart(
    results: Results, *, width: float = 980, height: float = 540, css: str = ""
) -> Html | None:
    """None if no model has both an average accuracy and a speed."""
    shown, across, up, lines, _ = circles(results)
    if not shown:
        return None
    return scatter(shown, across, up, lines=lines, size=size, width=width, height=height, css=css)


def accuracy_over_speed_section(results: Results) -> Html:
    shown, _, _, lines, missing = circles(results)
    wide = accuracy_over_speed_chart(results, css="wide")
    narrow = accuracy_over_speed_chart(results, width=400, height=440, css="narrow")
    if wide is None or narrow is None:
        note = "There is no chart: no model has both an accuracy on every task and a measured speed."
        return tag("section", tag("h2", "Accuracy over speed"), tag("p", note, css="quiet"))
    by = results.relatives[0].by
    notes = [
        f"Height: average accuracy over {task_list(results.averaged)}. Speed: {by}. The area of a circle is memory."
    ]
    if any(circle.pretrained is not None for circle in shown):
        notes.append("A dashed ring is the same model with self pre-training, at the same budget.")
    if any(circle.memory is None for circle in shown):
        notes.append("A dashed circle has no measured memory.")
    heights = [v for circle in shown for v in (circle.accuracy, circle.pretrained) if v is not None]
    outside = [f"{name} {value:.1f}" for name, value in split_lines(heights, lines)[1]]
    if outside:
        notes.append(f"Outside the chart: {', '.join(outside)}.")
    if missing:
        notes.append(f"Not shown: {'; '.join(missing)}.")
    return tag(
        "section",
        tag("h2", "Accuracy over speed"),
        tag("p", " ".join(notes), css="quiet"),
        legend([circle.kind for circle in shown]),
        wide,
        narrow,
    )


def interval_rows(results: Results, task: str) -> list[Interval]:
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
    return rows


def trivial_predictors(results: Results, task: str) -> list[tuple[str, float]]:
    """Accuracies of trivial predictors in percent, the lowest first."""
    accuracies = ((name.replace("_", " "), 100 * value) for name, value in results.baselines(task).items())
    return sorted(accuracies, key=lambda named: named[1])


def accuracy_chart(results: Results, task: str) -> Html | None:
    """None if no model has an accuracy."""
    rows = interval_rows(results, task)
    return _accuracy_chart(results, task, rows) if any(any(row.marks) for row in rows) else None


def _accuracy_chart(results: Results, task: str, rows: Sequence[Interval]) -> Html:
    description = f"accuracies on {task_title(task)} next to trivial predictors"
    return intervals(rows, trivial_predictors(results, task), description)


def accuracy_section(results: Results) -> Html:
    charts = []
    for task in results.tasks:
        chart = _accuracy_chart(results, task, interval_rows(results, task))
        charts.append(tag("figure", tag("h3", task_title(task)), chart))
    kinds = [kind(model) for model in results.models]
    notes = [
        "Test accuracy in percent at the step with the best held-out accuracy: the mean over seeds with its 95 % "
        "interval (Student's t over seeds; for one seed, binomial over the test set). Dashed lines are trivial "
        "predictors on the same test set."
    ]
    if results.pretrained:
        notes.append("A dashed ring is the same model with self pre-training, at the same budget.")
    signs = (
        "▲ above every trivial predictor by more than three standard errors of the test; △ above the majority "
        "class only; ○ not above the majority class. ± is half of the 95 % interval, s the standard deviation over "
        "seeds. Bold: the best model, and every model that does not differ from it beyond the noise; nothing is bold "
        "if that is every model. A model's noise is the wider of its two 95 % intervals, over seeds and over the test "
        "set. Point at a number, or focus it with the keyboard, for more digits."
    )
    flagged = dict.fromkeys((title(r.cell.model), r.flagged) for r in results.accuracy_records if r.flagged)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in flagged)
    free = f"⚑ {reasons}. The benchmark's rules call such a comparison a free-for-all." if flagged else ""
    return tag(
        "section",
        tag("h2", "Accuracy"),
        tag("p", " ".join(notes), css="quiet"),
        legend(kinds),
        tag("div", *charts, css="charts"),
        _table(results),
        tag("p", signs, css="quiet"),
        tag("p", free, css="quiet") if free else Html(""),
        failure_list([record for record in results.accuracy_records if record.state != "done"]),
    )


def failure_list(records: Sequence[Record]) -> Html:
    """Why cells have no result, as visible text: not everyone can reach tooltips."""
    if not records:
        return Html("")
    lines = []
    for record in records:
        cell = record.cell
        where = f"length {cell.length:,}" if cell.length is not None else f"{task_title(cell.task)}, seed {cell.seed}"
        where += ", self pre-trained" * cell.pretrain
        why = record.error or "no reason recorded"
        lines.append(tag("li", f"{title(cell.model)}, {where}: {STATE_NAMES.get(record.state, record.state)}: {why}"))
    return tag("div", tag("h3", "Cells without a result"), tag("ul", *lines), css="reasons")


def _table(results: Results) -> Html:
    forms = [False, True] if results.pretrained else [False]
    head: list[object] = ["model", "parameters"]
    for task in results.tasks:
        head += [task_title(task)] + [tag("span", task_title(task), Html("<br>"), "self pre-trained")] * (
            len(forms) - 1
        )
    averaged = f"the mean over {task_list(results.averaged)}"
    head += [with_tip("average", averaged)] + [with_tip("average, self pre-trained", averaged)] * (len(forms) - 1)
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
        row = [tag("span", f"trivial: {name.replace('_', ' ')}", css="quiet"), ""]
        values = [results.baselines(task).get(name) for task in results.tasks]
        for value in values:
            row += ["–" if value is None else percent(value)] + [""] * (len(forms) - 1)
        over_tasks = [results.baselines(task).get(name) for task in results.averaged]
        known = [value for value in over_tasks if value is not None]
        row += [percent(fmean(known)) if known and len(known) == len(over_tasks) else "–"] + [""] * (len(forms) - 1)
        rows.append(row)
    scores = table(head, rows, numbers=range(1, len(head)))
    return Html(f'{scores}<p class="quiet">The average is {text(averaged)}, and needs all of them.</p>')


def _parameters(results: Results, model: str) -> Html:
    """The range of parameter counts over tasks."""
    records = [r for r in results.accuracy_records if r.cell.model == model and r.parameters]
    counts = sorted({r.parameters for r in records if r.parameters})
    if not counts:
        return Html("–")
    shown = " – ".join(dict.fromkeys(_count(value) for value in (counts[0], counts[-1])))
    lines = dict.fromkeys(
        f"{task_title(r.cell.task)}: {r.parameters:,}"
        + (f", {r.parameters_ratio:.2f} times the base Transformer's" if r.parameters_ratio else "")
        for r in records
    )
    return with_tip(shown, "\n".join(lines))


def _count(value: int) -> str:
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} K" if value >= 1000 else str(value)


def _best(results: Results, task: str, pretrain: bool) -> set[str]:
    """The best model and all that do not differ from it beyond the noise; none if that is every model."""
    scores = {model: s for model in results.models if (s := results.score(task, model, pretrain)) is not None}
    if not scores:
        return set()
    highest = max(scores.values(), key=lambda score: score.mean)
    best = {model for model, score in scores.items() if not highest.separate(score)}
    return best if len(best) < len(scores) else set()


def _best_averages(results: Results, pretrain: bool) -> set[str]:
    averages = {m: known for m in results.models if (known := average_and_noise(results, m, pretrain)) is not None}
    if not averages:
        return set()
    highest, noise = max(averages.values(), key=lambda known: known[0])
    best = {m for m, (mean, other) in averages.items() if highest - mean <= hypot(noise or 0.0, other or 0.0)}
    return best if len(best) < len(averages) else set()


def _cell(results: Results, task: str, model: str, pretrain: bool, best: set[str]) -> Html:
    cells, score = results.cells(task, model, pretrain), results.score(task, model, pretrain)
    wrong = [record for record in cells if record.state != "done"]
    reasons = "\n".join(failure(record) for record in wrong)
    if score is None:
        return with_tip(_ended(wrong), reasons, "bad") if wrong else Html("–")
    half = "" if score.half is None else tag("small", f" ± {100 * score.half:.1f}")
    number = tag("b", percent(score.mean)) if model in best else percent(score.mean)
    sign, meaning = _sign(score, results.baselines(task))
    below = f"s {100 * score.deviation:.2f}, {score.seeds} seeds" if score.deviation is not None else "1 seed"
    lost = with_tip(f"{len(wrong)} of {len(cells)} {_ended(wrong)}", reasons, "bad") if wrong else ""
    tip = score_tip(score, model, task, pretrain) + (f"\n{meaning}" if meaning else "")
    return tag(
        "div",
        with_tip(Html(f"{text(number)}{half} {sign}"), tip),
        tag("small", Html("<br>"), below, css="quiet"),
        tag("small", Html("<br>"), lost) if lost else "",
    )


def _ended(records: Sequence[Record]) -> str:
    return " or ".join(dict.fromkeys(STATE_NAMES.get(record.state, record.state) for record in records))


def _sign(score: Score, baselines: dict[str, float]) -> tuple[str, str]:
    if not baselines or score.error is None:
        return "", ""
    if all(score.above(value) for value in baselines.values()):
        return "▲", "above every trivial predictor by more than three standard errors"
    if "majority" in baselines and score.above(baselines["majority"]):
        return "△", "above the majority class, but not above every trivial predictor"
    return "○", "not above the majority class by three standard errors"
