"""The arena's report: results.jsonl -> one self-contained page, and figures for papers."""

from pathlib import Path

from longspan.arena.efficiency import FUSED, NAIVE
from longspan.errors import InvalidInput
from longspan.report import charts, figures, kinds
from longspan.report.arena_account import data, machine, repeat
from longspan.report.arena_accuracy import accuracies, overview
from longspan.report.arena_learning import learned
from longspan.report.arena_numbers import ENDED, percent, size, task_list, times
from longspan.report.arena_published import beside
from longspan.report.arena_speed import efficiency, energy
from longspan.report.look import SCRIPT, STYLE
from longspan.report.page import Html, page, tag, text
from longspan.report.results import Results, read


def write(folder: Path) -> Path:
    """Reads results.jsonl and grid.json of a folder; writes report.html and figures/ there; where the page is."""
    results = read(folder)
    path = folder / "report.html"
    try:
        made, lacking = figures.write(results, folder / "figures")
        path.write_text(arena_page(results, [file.relative_to(folder) for file in made], lacking), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{error.filename or folder} cannot be written: {error.strerror}") from None
    return path


def arena_page(results: Results, made: list[Path], lacking: str = "") -> str:
    """The whole page; `made` are figures beside it, `lacking` says why there are none."""
    return page(
        "Long Range Arena, longspan",
        _head(results),
        overview(results),
        accuracies(results),
        efficiency(results),
        learned(results),
        beside(results),
        energy(results),
        data(results),
        machine(results),
        repeat(results),
        _figures(made, lacking),
        style=charts.STYLE + kinds.style() + STYLE,
        script=SCRIPT,
    )


def _head(results: Results) -> Html:
    done = sum(record.state == "done" for record in results.records)
    wrong = len(results.records) - done
    seeds = len({record.cell.seed for record in results.accuracy_records})
    began = sorted(record.began for record in results.records if record.began)
    counted = [f"{len(results.models)} models", f"{len(results.tasks)} tasks ({task_list(results.tasks)})"]
    counted += [f"{seeds} seeds" if seeds != 1 else "one seed", f"setting {', '.join(results.settings)}"]
    parts = [tag("h1", "Long Range Arena"), tag("p", f"{', '.join(counted)}.", kind="lede")]
    if began:
        parts.append(tag("p", f"Begun {began[0]}.", kind="quiet"))
    parts += [tag("p", f"Note: {note}.", kind="quiet") for note in results.notes]
    if "tiny" in results.settings:
        parts.append(
            tag(
                "p",
                tag("b", "Setting tiny. "),
                "Short inputs, small models and a budget of minutes, for machines without an accelerator. It shows who "
                "learns and at what cost; no figure here is comparable with a published one.",
                kind="warning",
            )
        )
    states = ", ".join(
        f"{sum(r.state == state for r in results.records)} {said}"
        for state, said in ENDED.items()
        if any(r.state == state for r in results.records)
    )
    cells = results.grid.get("cells")
    planned = max(len(results.records), len(cells) if isinstance(cells, list) else 0)
    facts = [(f"{done} of {planned}", "cells done" + (f"; {states}" if wrong else ""))]
    facts += _best(results)
    cards = (tag("div", tag("b", value), tag("small", named)) for value, named in facts)
    return tag("header", *parts, tag("div", *cards, kind="facts"))


def _best(results: Results) -> list[tuple[str, str]]:
    """Who is first in what."""
    facts = []
    averages = [(value, model) for model in results.models if (value := results.average(model)) is not None]
    if averages:
        value, model = max(averages, key=lambda each: each[0])
        facts.append((percent(value), f"best average accuracy: {kinds.title(model)}"))
    after = [(value, model) for model in results.models if (value := results.average(model, True)) is not None]
    if after:
        value, model = max(after, key=lambda each: each[0])
        facts.append((percent(value), f"best self pre-trained: {kinds.title(model)}"))
    others = [each for each in results.relatives if each.model not in (NAIVE, FUSED)]
    fast = [(each.speed_ratio, each) for each in others if each.speed_ratio]
    if fast:
        ratio, each = max(fast, key=lambda pair: pair[0])
        facts.append((times(ratio), f"the dense speed, the fastest: {kinds.title(each.model)}"))
    small = [(each.memory, each) for each in others if each.memory and each.memory_ratio]
    if small:
        memory, each = min(small, key=lambda pair: pair[0])
        assert each.memory_ratio is not None
        facts.append(
            (times(each.memory_ratio), f"the dense memory, the least: {kinds.title(each.model)}, {size(memory)}")
        )
    return facts


def _figures(made: list[Path], lacking: str) -> Html:
    if lacking:
        return tag("section", tag("h2", "Figures for papers"), tag("p", lacking, kind="quiet"))
    named: dict[str, list[str]] = {}
    for file in made:
        link = f'<a href="{text(file.as_posix())}">{text(file.suffix[1:].upper())}</a>'
        named.setdefault(file.stem.replace("_", " "), []).append(link)
    rows = [f"<li>{text(name)}: {' · '.join(links)}</li>" for name, links in named.items()]
    inside = Html(f'<p class="quiet">In the folder beside this page:</p><ul class="files">{"".join(rows)}</ul>')
    return tag("section", tag("h2", "Figures for papers"), inside)
