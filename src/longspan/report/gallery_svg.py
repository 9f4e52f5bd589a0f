"""All patterns in one SVG file, for a README: it follows the reader's light or dark mode and needs no script."""

from collections.abc import Sequence

from longspan.inspect.gallery import Entry
from longspan.report.gallery import thumbnail
from longspan.report.page import DARK, LIGHT, text
from longspan.report.palette import KINDS
from longspan.report.png import data_address
from longspan.report.profile import kind_of

COLUMNS, CELL, GAP, LABEL, MARGIN, TOP = 7, 118, 22, 36, 18, 46
LONGEST = 20  # letters of a label
WIDE = 14  # letters of a name from which it is set narrower, to stay below its picture


def gallery_svg(entries: Sequence[Entry]) -> str:
    """A sheet of all first pictures with name and order, and a legend of their classes."""
    rows = -(-len(entries) // COLUMNS)
    width = 2 * MARGIN + COLUMNS * CELL + (COLUMNS - 1) * GAP
    height = TOP + rows * (CELL + LABEL + GAP)
    cells = [_cell(entry, index % COLUMNS, index // COLUMNS) for index, entry in enumerate(entries)]
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="What {len(entries)} attention mechanisms read: rows are queries, columns are keys">'
        f"<style>{_style()}</style><rect class='paper' width='{width}' height='{height}' rx='8'/>"
        f"{_legend(entries)}{''.join(cells)}</svg>\n"
    )


def _cell(entry: Entry, column: int, row: int) -> str:
    x, y = MARGIN + column * (CELL + GAP), TOP + row * (CELL + LABEL + GAP)
    order = str(entry.facts["order"])
    order = order if len(order) <= LONGEST else order[: LONGEST - 1].rstrip(" ·+(:") + "…"
    narrower = f" textLength='{CELL}' lengthAdjust='spacingAndGlyphs'" if len(entry.name) > WIDE else ""
    return (
        f"<g class='k-{kind_of(entry.name)}'><title>{text(entry.name)}: {text(entry.facts['summary'])}</title>"
        f"<image x='{x}' y='{y}' width='{CELL}' height='{CELL}' href='{data_address(thumbnail(entry))}'/>"
        f"<rect class='frame' x='{x}' y='{y}' width='{CELL}' height='{CELL}'/>"
        f"<text class='name' x='{x}' y='{y + CELL + 16}'{narrower}>{text(entry.name)}</text>"
        f"<text class='quiet' x='{x}' y='{y + CELL + 31}'>{text(order)}</text></g>"
    )


def _legend(entries: Sequence[Entry]) -> str:
    parts, x = [], MARGIN
    for kind in dict.fromkeys(kind_of(entry.name) for entry in entries):
        title = KINDS[kind][0]
        parts.append(
            f"<g class='k-{kind}'><circle class='dot' cx='{x + 5}' cy='22' r='5'/>"
            f"<text class='quiet' x='{x + 15}' y='26'>{text(title)}</text></g>"
        )
        x += 40 + round(5.6 * len(title))
    return "".join(parts)


def _style() -> str:
    rules = [
        "image { image-rendering: pixelated; }",
        "text { font: 12px system-ui, sans-serif; } .name { font-weight: 600; } g text.quiet { font-size: 11px; }",
        ".frame { fill: none; stroke-width: 1; }",
    ]
    light, dark = (
        f".paper {{ fill: {colours['paper']}; }} .name {{ fill: {colours['ink']}; }} "
        f".quiet {{ fill: {colours['quiet']}; }} .frame {{ stroke: {colours['line']}; }} "
        + " ".join(f".k-{name} .dot {{ fill: {kind[column]}; }}" for name, kind in KINDS.items())
        for colours, column in ((LIGHT, 1), (DARK, 2))
    )
    return "\n".join(
        [*rules, light, f"@media (prefers-color-scheme: dark) {{ {dark} image {{ filter: {BRIGHTER}; }} }}"]
    )


BRIGHTER = "brightness(1.7)"  # the pictures' colours are those for white paper


__all__ = ["gallery_svg"]
