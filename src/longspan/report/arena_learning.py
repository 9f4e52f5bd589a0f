"""Section of the arena page: learning curves."""

from math import isfinite

from longspan.report.arena_accuracy import trivial_predictors
from longspan.report.arena_numbers import task_title
from longspan.report.charts import DASHES, ChartAxis, ChartLine, curves
from longspan.report.page import Html, tag
from longspan.report.palette import kind, title
from longspan.report.results import Results
from longspan.report.statistics import mean_curve

AXES = {"step": "steps", "seconds": "seconds of training"}


def learning_lines(results: Results, task: str, by: str) -> list[ChartLine]:
    """Held-out accuracy over `by`, "step" or "seconds", as the mean over seeds."""
    lines, seen = [], dict[str, int]()
    for model in results.models:
        dash = DASHES[seen.get(kind(model), 0) % len(DASHES)]
        for pretrain in (False, True):
            curves_of_seeds = []
            for record in results.cells(task, model, pretrain):
                points = [(row.get(by), row.get("held_out")) for row in record.curve]
                finite = [(float(x), 100 * float(y)) for x, y in points if x is not None and y is not None]
                curves_of_seeds.append([(x, y) for x, y in finite if isfinite(x) and isfinite(y)])
            line = mean_curve(curves_of_seeds)
            if not line:
                continue
            seeds = sum(map(bool, curves_of_seeds))
            over = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
            tips = [f"{y:.1f} after {f'{x:,.0f} steps' if by == 'step' else f'{x:,.0f} s'} ({over})" for x, y in line]
            name = title(model) + ("*" if pretrain else "")
            lines.append(ChartLine(name, kind(model), line, tips, "1 4" if pretrain else dash))
            seen[kind(model)] = seen.get(kind(model), 0) + (not pretrain)
    return lines


def learning_chart(results: Results, task: str, by: str) -> Html | None:
    """None if no model has a curve."""
    lines = learning_lines(results, task, by)
    if not lines:
        return None
    across = AXES[by]
    return curves(
        lines,
        ChartAxis(across, lambda value: f"{value:,.0f}"),
        ChartAxis("held-out accuracy, %"),
        f"learning curves on {task_title(task)} over {across}",
        levels=trivial_predictors(results, task),
    )


def learning_section(results: Results) -> Html:
    charts: dict[str, list[Html]] = {by: [] for by in AXES}
    for task in results.tasks:
        for by in AXES:
            if (chart := learning_chart(results, task, by)) is not None:
                charts[by].append(tag("figure", tag("h3", task_title(task)), chart))
    if not charts["step"]:
        return Html("")
    note = (
        "Accuracy on held-out examples: the mean over seeds, as far as all seeds have run. Dashed levels are trivial "
        "predictors on the test set." + (" * with self pre-training." if results.pretrained else "")
    )
    choice = Html(
        '<input type="radio" name="by" id="by-step" checked><label for="by-step">over steps</label>'
        '<input type="radio" name="by" id="by-seconds"><label for="by-seconds">over time</label>'
    )
    return tag(
        "section",
        tag("h2", "Learning curves"),
        tag("p", note, css="quiet"),
        choice,
        tag("div", *charts["step"], css="charts by-step"),
        tag("div", *(charts["seconds"] or charts["step"]), css="charts by-seconds"),
        css="learning",
    )
