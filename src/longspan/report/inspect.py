"""The page of `longspan inspect`: all heads of a model on one input, one of them large, with every number behind it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longspan import files
from longspan.inspect.records import HeadRecord, ModuleRecord, Record
from longspan.report.inspect_data import index_of
from longspan.report.page import Html, table, tag, text
from longspan.report.payload import Payload
from longspan.report.png import data_address
from longspan.report.strict_page import script_of, strict_page, style_of

SCRIPTS = (
    "record",
    "colours",
    "map",
    "several",
    "grid",
    "lines",
    "side",
    "offsets",
    "picture",
    "steps",
    "buckets",
    "viewer",
)
BLUE = (31, 111, 184)  # of the pictures that need no script
MOST_TEXT = 2000  # letters of the text in the heading
MOST_PICTURES = 200  # without a script


def write(path: Path, record: Record) -> None:
    """Writes the page of a record."""
    files.write_text(path, page(record))


def page(record: Record) -> str:
    """The page of a record: one file that requests nothing."""
    payload = Payload()
    index = index_of(payload, record)
    return strict_page(
        f"longspan inspect {record.model.name}",
        _head(record),
        _without_script(record.modules),
        VIEWER,
        payload.markup(index),
        style=style_of(["viewer.css"]),
        script=script_of(["core.js", *(f"viewer/{name}.js" for name in SCRIPTS)]),
    )


VIEWER = Html(
    '<main id="viewer"><nav id="heads" aria-label="layers and heads"></nav><div id="stage">'
    '<div id="tabs" role="tablist"></div><div id="none" hidden></div>'
    '<section id="map-view" role="tabpanel"><div class="bar">'
    '<label>scale <select id="contrast"><option value="log">logarithmic</option><option value="linear">linear</option>'
    '</select></label><label><input type="checkbox" id="fog"> what could be read</label>'
    '<button type="button" id="fit">whole map</button></div>'
    '<canvas id="map" class="map" role="img" aria-label="the map: rows are queries, columns are keys; arrow keys move '
    'over its cells, + and - zoom"></canvas>'
    '<div id="buckets" hidden></div><p id="readout" class="readout" role="status"></p>'
    '<div class="under"><div id="legend"></div><p id="pattern-says" class="quiet"></p></div></section></div>'
    '<aside id="side"></aside></main>'
)


def _head(record: Record) -> Html:
    model, axes = record.model, record.axes
    sizes = ", ".join(
        f"{len(axis):,} {'patches and tokens' if name == 'image' else 'tokens'} ({name})" for name, axis in axes.items()
    )
    facts = ", ".join([model.kind, f"{model.parameters:,} parameters", *model.mechanisms]) + f". {sizes}."
    facts += " Layers, heads and positions are counted from 0; rows are queries, columns are keys."
    detail = (
        f" {record.budget.omitted} heads are shown without exact weights: they did not fit."
        if record.budget.omitted
        else ""
    )
    shown = record.text if len(record.text) <= MOST_TEXT else record.text[:MOST_TEXT] + " …"
    return tag(
        "header",
        tag("h1", model.name),
        tag("p", facts + detail, css="quiet"),
        *([tag("p", shown, css="given")] if shown else []),
        *(tag("p", note, css="quiet") for note in record.notes),
        tag("p", record.caution, css="caution quiet"),
    )


def _without_script(modules: Sequence[ModuleRecord]) -> Html:
    """All heads as pictures and numbers, for readers without JavaScript."""
    pictures: list[str] = []
    rows: list[list[object]] = []
    for module in modules:
        for head in module.heads:
            if len(pictures) < MOST_PICTURES:
                name = text(f"{module.title}, head {head.index}")
                pictures.append(f'<img alt="{name}" title="{name}" src="{data_address(_picture(head))}">')
            sums = head.sums
            numbers = (sums.previous, sums.self, sums.next, sums.first, sums.largest)
            rows.append([module.title, head.index, *(f"{number:.3f}" for number in numbers)])
    head_row = ("attention", "head", "previous", "itself", "next", "first", "largest")
    return Html(
        "<noscript><p>Zooming and hovering need JavaScript. All heads, in order:</p>"
        f'<div class="overview">{"".join(pictures)}</div>{table(head_row, rows, numbers=range(1, 7))}</noscript>'
    )


def _picture(head: HeadRecord) -> NDArray[np.uint8]:
    codes = head.pyramid.levels[-1].max
    strength = np.clip((codes.astype(np.float32) - 120) / 135, 0, 1)  # from about 1e-3 up
    pixels = np.empty((*codes.shape, 4), np.uint8)
    pixels[..., :3] = BLUE
    pixels[..., 3] = np.rint(255 * strength)
    return pixels


__all__ = ["page", "write"]
