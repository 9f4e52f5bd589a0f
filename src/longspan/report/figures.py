"""The arena page's charts as self-contained SVG files, for papers and slides.

The files hold the page's own charts with light colours written out: most programs that read SVG know no CSS variables.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from longspan import files
from longspan.report import charts, plots
from longspan.report.arena_accuracy import accuracy_chart, accuracy_over_speed_chart
from longspan.report.arena_learning import learning_chart
from longspan.report.arena_numbers import task_title
from longspan.report.arena_speed import EFFICIENCY, efficiency_chart
from longspan.report.arena_state import state_chart
from longspan.report.page import LIGHT, Html, text
from longspan.report.palette import KINDS
from longspan.report.results import Results

MARGIN, HEADING = 12.0, 30.0
COLOURS = {**LIGHT, "paper": "#ffffff"}

_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_BOX = re.compile(r'<svg viewBox="0 0 ([\d.]+) ([\d.]+)"')
_UNSAFE = re.compile(r"[^\w.-]")  # in file names
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # not allowed in XML


def write(results: Results, folder: Path) -> list[Path]:
    """Writes one file for each chart that the results give."""
    paths = []
    for name, heading, chart in _charts(results):
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(folder / f"{_UNSAFE.sub('_', name)}.svg")
        files.write_text(paths[-1], standalone(chart, heading))
    return paths


def _charts(results: Results) -> Iterator[tuple[str, str, Html]]:
    """File name, heading and chart."""
    if (chart := accuracy_over_speed_chart(results)) is not None:
        yield "accuracy_over_speed", "Accuracy over speed", chart
    for task in results.tasks:
        if (chart := accuracy_chart(results, task)) is not None:
            yield f"accuracy_{task}", f"{task_title(task)}: accuracy, %", chart
    for task in results.tasks:
        if (chart := state_chart(results, task)) is not None:
            yield f"state_{task}", f"{task_title(task)}: accuracy over bytes of state", chart
    for task in results.tasks:
        if (chart := learning_chart(results, task, "step")) is not None:
            yield f"learning_{task}", f"{task_title(task)}: learning curves", chart
    for quantity, heading in EFFICIENCY.items():
        if (chart := efficiency_chart(results, quantity)) is not None:
            yield quantity, heading, chart


def standalone(chart: Html, heading: str) -> str:
    """A chart of the page as a separate file, with a heading, on white."""
    box = _BOX.match(chart)
    assert box is not None
    width, height = float(box[1]), float(box[2])
    inner = chart.replace("<svg ", f'<svg x="{MARGIN:g}" y="{HEADING:g}" width="{width:g}" height="{height:g}" ', 1)
    wide, high = width + 2 * MARGIN, height + HEADING + MARGIN
    document = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:g}" height="{high:g}" viewBox="0 0 {wide:g} {high:g}">'
        f"<style>{_style()}</style>"
        f'<rect width="{wide:g}" height="{high:g}" class="paper"/>'
        f"{charts.words(MARGIN + 4, 20, text(heading), 'name')}{inner}</svg>\n"
    )
    return _CONTROL.sub("\ufffd", document)


def _style() -> str:
    """The charts' style sheet without variables; rules with the colour of a kind are repeated for each kind."""
    rules = []
    for selector, body in _RULE.findall(charts.STYLE + plots.STYLE):
        selector = selector.strip()
        if selector == "svg" or ":" in selector:  # the size of a chart on the page; hover and focus
            continue
        body = re.sub(r"var\(--(\w+)\)", lambda match: COLOURS.get(match[1], match[0]), body)
        if "var(--k)" in body:
            for kind, (_, light, _) in KINDS.items():
                rules.append(f".k-{kind} {selector} {{{body.replace('var(--k)', light)}}}")
        else:
            rules.append(f"{selector} {{{body}}}")
    return "\n".join(rules)


__all__ = ["standalone", "write"]
