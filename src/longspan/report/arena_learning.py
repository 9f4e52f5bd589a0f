"""Of the arena's page: learning curves."""

from math import isfinite

from longspan.report.arena_accuracy import trivial
from longspan.report.arena_numbers import task_title
from longspan.report.charts import DASHES, ChartAxis, ChartLine, curves
from longspan.report.page import Html, tag
from longspan.report.palette import kind, title
from longspan.report.results import Results
from longspan.report.statistics import mean_curve


def learning(results: Results, task: str, by: str) -> list[ChartLine]:
    """Held-out accuracy over steps or seconds, the mean over seeds."""
    found, seen = [], dict[str, int]()
    for model in results.models:
        dash = DASHES[seen.get(kind(model), 0) % len(DASHES)]
        for pretrain in (False, True):
            drawn = []
            for record in results.cells(task, model, pretrain):
                points = [(each.get(by), each.get("held_out")) for each in record.curve]
                finite = [(float(x), 100 * float(y)) for x, y in points if x is not None and y is not None]
                drawn.append([(x, y) for x, y in finite if isfinite(x) and isfinite(y)])
            line = mean_curve(drawn)
            if not line:
                continue
            seeds = sum(bool(each) for each in drawn)
            over = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
            tips = [f"{y:.1f} after {f'{x:,.0f} steps' if by == 'step' else f'{x:,.0f} s'} ({over})" for x, y in line]
            name = title(model) + ("*" if pretrain else "")
            found.append(ChartLine(name, kind(model), line, tips, "1 4" if pretrain else dash))
            seen[kind(model)] = seen.get(kind(model), 0) + (not pretrain)
    return found


def learned(results: Results) -> Html:
    charts: dict[str, list[Html]] = {"step": [], "seconds": []}
    for task in results.tasks:
        levels = trivial(results, task)
        for by, across in (("step", "steps"), ("seconds", "seconds of training")):
            lines = learning(results, task, by)
            if lines:
                chart = curves(
                    lines,
                    ChartAxis(across, lambda value: f"{value:,.0f}"),
                    ChartAxis("held-out accuracy, %"),
                    f"learning curves on {task_title(task)} over {across}",
                    levels=levels,
                )
                charts[by].append(tag("figure", tag("h3", task_title(task)), chart))
    if not charts["step"]:
        return Html("")
    note = (
        "Accuracy on held-out examples, the mean over seeds as far as all of them reach; dashed levels are trivial "
        "predictors on the test." + (" * with self pre-training." if results.pretrained else "")
    )
    choice = Html(
        '<input type="radio" name="by" id="by-step" checked><label for="by-step">over steps</label>'
        '<input type="radio" name="by" id="by-seconds"><label for="by-seconds">over time</label>'
    )
    return tag(
        "section",
        tag("h2", "Learning curves"),
        tag("p", note, kind="quiet"),
        choice,
        tag("div", *charts["step"], kind="charts by-step"),
        tag("div", *(charts["seconds"] or charts["step"]), kind="charts by-seconds"),
        kind="learning",
    )
