"""The arena's report: turns results.jsonl into one self-contained page and SVG figures."""

from collections.abc import Sequence
from pathlib import Path

from longspan import files
from longspan.arena.published import FIVE
from longspan.errors import InvalidInput
from longspan.report import charts, figures, palette
from longspan.report.arena_account import cells_section, data_section, machine_section
from longspan.report.arena_accuracy import accuracy_over_speed_section, accuracy_section
from longspan.report.arena_conclusions import conclusions, facts, learned
from longspan.report.arena_learning import learning_section
from longspan.report.arena_numbers import STATE_NAMES, task_list
from longspan.report.arena_published import published_section
from longspan.report.arena_speed import efficiency_section, energy_section
from longspan.report.arena_state import state_section
from longspan.report.page import Html, page, tag, text
from longspan.report.results import Results, read
from longspan.report.theme import SCRIPT, STYLE


def write(folder: Path) -> Path:
    """Reads results.jsonl and grid.json of a folder, writes report.html and figures/; returns the page's path."""
    results = read(folder)
    path = folder / "report.html"
    try:
        paths = figures.write(results, folder / "figures")
        files.write_text(path, arena_page(results, [figure.relative_to(folder) for figure in paths]))
    except OSError as error:
        raise InvalidInput(f"{error.filename or folder} cannot be written: {error.strerror}") from None
    return path


def arena_page(results: Results, figure_paths: Sequence[Path]) -> str:
    """The whole page; `figure_paths` are the files that it links to."""
    return page(
        f"{_title(results)}, longspan",
        _head(results),
        accuracy_over_speed_section(results),
        accuracy_section(results),
        state_section(results),
        efficiency_section(results),
        learning_section(results),
        published_section(results),
        energy_section(results),
        data_section(results),
        machine_section(results),
        cells_section(results),
        _figure_links(figure_paths),
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
    counts = [_count(len(trained), "model") + (f" (and {_count(len(timed), 'model')} for speed only)" * bool(timed))]
    if results.tasks:
        counts += [f"{_count(len(results.tasks), 'task')} ({task_list(results.tasks)})", _count(seeds, "seed")]
    counts += [f"setting {', '.join(results.settings)}"]
    parts = [tag("h1", _title(results))]
    if headline := learned(results):
        parts.append(tag("p", tag("b", headline), css="conclusions"))
    sentences = conclusions(results)
    if len(sentences) == 1:
        parts.append(tag("p", sentences[0], css="conclusions"))
    elif sentences:
        parts.append(tag("ul", *(tag("li", sentence) for sentence in sentences), css="conclusions"))
    parts.append(tag("p", f"{', '.join(counts)}.", css="quiet"))
    if began:
        parts.append(tag("p", f"Started {began[0]}.", css="quiet"))
    parts += [tag("p", f"Note: {note}.", css="quiet") for note in results.notes]
    if "tiny" in results.settings:
        parts.append(
            tag(
                "p",
                tag("b", "Setting tiny. "),
                "Short inputs, small models and a budget of minutes, for machines without an accelerator. It shows "
                "which models learn, and at what cost; no number here is comparable with a published one.",
                css="warning",
            )
        )
    states = ", ".join(
        f"{sum(r.state == state for r in results.records)} {name}"
        for state, name in STATE_NAMES.items()
        if any(r.state == state for r in results.records)
    )
    cells = results.grid.get("cells")
    planned = max(len(results.records), len(cells) if isinstance(cells, list) else 0)
    shown_facts = [(f"{done} of {planned}", "cells done" + (f"; {states}" if wrong else ""))]
    shown_facts += facts(results)
    cards = (tag("div", tag("b", value), tag("small", name)) for value, name in shown_facts)
    return tag("header", *parts, tag("div", *cards, css="facts"))


def _title(results: Results) -> str:
    """The benchmark's name only if one of its tasks was run, or speeds alone, which are its efficiency table."""
    return "Long Range Arena" if not results.tasks or {*FIVE, "pathx"} & {*results.tasks} else "The arena"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _figure_links(paths: Sequence[Path]) -> Html:
    if not paths:
        content = tag("p", "These results give no charts, so there are no figures.", css="quiet")
        return tag("section", tag("h2", "Figures"), content)
    links = [f'<li><a href="{text(path.as_posix())}">{text(path.stem.replace("_", " "))}</a></li>' for path in paths]
    note = "The charts of this page as SVG files, for papers and slides:"
    return tag("section", tag("h2", "Figures"), tag("p", note, css="quiet"), tag("ul", *map(Html, links), css="files"))
