"""The arena's report: results.jsonl -> one self-contained page, and figures for papers."""

from pathlib import Path

from longspan import files
from longspan.errors import InvalidInput
from longspan.report import charts, figures, palette
from longspan.report.arena_account import data, machine, repeat
from longspan.report.arena_accuracy import accuracies, overview
from longspan.report.arena_conclusions import conclusions, facts
from longspan.report.arena_learning import learned
from longspan.report.arena_numbers import ENDED, task_list
from longspan.report.arena_published import beside
from longspan.report.arena_speed import efficiency, energy
from longspan.report.page import Html, page, tag, text
from longspan.report.results import Results, read
from longspan.report.theme import SCRIPT, STYLE


def write(folder: Path) -> Path:
    """Reads results.jsonl and grid.json of a folder; writes report.html and figures/ there; where the page is."""
    results = read(folder)
    path = folder / "report.html"
    try:
        made, lacking = figures.write(results, folder / "figures")
        files.write_text(path, arena_page(results, [file.relative_to(folder) for file in made], lacking))
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
        style=charts.STYLE + palette.style() + STYLE,
        script=SCRIPT,
    )


def _head(results: Results) -> Html:
    done = sum(record.state == "done" for record in results.records)
    wrong = len(results.records) - done
    seeds = len({record.cell.seed for record in results.accuracy_records})
    began = sorted(record.began for record in results.records if record.began)
    trained = [model for model in results.models if any(r.cell.model == model for r in results.accuracy_records)]
    timed = [model for model in results.models if model not in trained]
    counted = [_count(len(trained), "model") + (f" (and {_count(len(timed), 'model')} for speed only)" * bool(timed))]
    if results.tasks:
        counted += [f"{_count(len(results.tasks), 'task')} ({task_list(results.tasks)})", _count(seeds, "seed")]
    counted += [f"setting {', '.join(results.settings)}"]
    parts = [tag("h1", "Long Range Arena")]
    shown = conclusions(results)
    if len(shown) == 1:
        parts.append(tag("p", shown[0], kind="learnt"))
    elif shown:
        parts.append(tag("ul", *(tag("li", line) for line in shown), kind="learnt"))
    parts.append(tag("p", f"{', '.join(counted)}.", kind="quiet"))
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
    shown_facts = [(f"{done} of {planned}", "cells done" + (f"; {states}" if wrong else ""))]
    shown_facts += facts(results)
    cards = (tag("div", tag("b", value), tag("small", named)) for value, named in shown_facts)
    return tag("header", *parts, tag("div", *cards, kind="facts"))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


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
