"""Section of the arena page: accuracy against the bytes that a model carries on, and accuracy by part of the test."""

from longspan.report.arena_accuracy import model_name, trivial_predictors, with_tip
from longspan.report.arena_numbers import name_and_kind, percent, size, task_title
from longspan.report.charts import ChartAxis, Circle, legend, scatter
from longspan.report.page import Html, table, tag
from longspan.report.palette import kind, title
from longspan.report.results import Results

ACROSS = ChartAxis("state of one text, all layers", size, factors=True, halves=True)


def state_chart(results: Results, task: str) -> Html | None:
    """Accuracy over bytes of state; None if fewer than two models have both."""
    circles = []
    for model in results.models:
        score, state = results.score(task, model), results.state_bytes(task, model)
        if score is None or state is None:
            continue
        tip = f"{name_and_kind(model)}\naccuracy {100 * score.mean:.2f}\nstate {state:,} bytes"
        circles.append(Circle(title(model), kind(model), state, 100 * score.mean, None, tip))
    if len(circles) < 2:
        return None
    best = trivial_predictors(results, task)[-1:]
    lines = [(f"best trivial predictor: {name}", value) for name, value in best]
    up = ChartAxis("accuracy, %")
    return scatter(circles, ACROSS, up, lines=lines, size=size, width=440, height=340, areas=False)


def state_section(results: Results) -> Html:
    charts, tables = [], []
    for task in results.tasks:
        if (chart := state_chart(results, task)) is not None:
            charts.append(tag("figure", tag("h3", task_title(task)), chart))
        if (by_group := _groups(results, task)) is not None:
            tables.append(by_group)
    if not charts and not tables:
        return Html("")
    note = (
        "The state is what the causal form of all layers keeps of one text of the test for the next token, in 32-bit "
        "numbers: keys and values (dense attention, windows), sums (kernels), hidden and cell states (recurrent, both "
        "directions); for Linformer and Nyströmformer, which have no causal form, the compressed keys and values."
    )
    parts = [tag("h2", "Accuracy over state")]
    if charts:
        kinds = [kind(model) for model in results.models if any(results.state_bytes(t, model) for t in results.tasks)]
        parts += [tag("p", note, css="quiet"), legend(kinds), tag("div", *charts, css="charts")]
    return tag("section", *parts, *tables)


def _groups(results: Results, task: str) -> Html | None:
    """A table of accuracies by part of the test, or None."""
    rows, names = list[list[object]](), list[str]()
    for model in results.models:
        groups = results.groups(task, model)
        if not groups:
            continue
        names = names or list(groups)
        state = results.state_bytes(task, model)
        shown: list[object] = [model_name(results, model), "–" if state is None else size(state)]
        shown += [_cell(model, name, groups.get(name)) for name in names]
        rows.append(shown)
    if not rows:
        return None
    by = next((r.grouped_by for r in results.accuracy_records if r.cell.task == task and r.grouped_by), "part")
    heading = tag("h3", f"{task_title(task)}: accuracy in percent, by {by}")
    return tag("div", heading, table(["model", "state", *names], rows, numbers=range(1, len(names) + 2)))


def _cell(model: str, name: str, value: float | None) -> Html:
    if value is None:
        return Html("–")
    tip = f"{name_and_kind(model)}\n{name}: {100 * value:.2f}"
    return Html(
        f'<div class="barred k-{kind(model)}">{with_tip(percent(value), tip)}'
        f'<u style="width:{100 * value:.1f}%"></u></div>'
    )


__all__ = ["state_chart", "state_section"]
