"""Pictures of the examples: `show` writes them to tour/, or into the page that `render.py` makes."""

from collections.abc import Sequence
from pathlib import Path

from longspan.report import palette
from longspan.report.charts import ChartAxis, ChartLine, curves
from longspan.report.figures import standalone
from longspan.report.page import Html
from longspan.report.plots import heat_map

FOLDER = Path("tour")
_page: list[Html] | None = None  # where the renderer collects pictures
KINDS = tuple(palette.KINDS)


def show(title: str, picture: Html) -> None:
    """Put a picture into the page, or write it to tour/TITLE.svg."""
    if _page is not None:
        _page.append(picture)
        return
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{title.lower().replace(' ', '-')}.svg"
    path.write_text(standalone(picture, title), encoding="utf-8")
    print(f"[picture: {path}]")


def collect(into: list[Html] | None) -> None:
    """Collect pictures in a list from now on; None: write files again."""
    global _page
    _page = into


def lines(title: str, series: dict[str, Sequence[tuple[float, float]]], x: ChartAxis, y: ChartAxis) -> None:
    """Show one line for each name."""
    drawn = [
        ChartLine(name, KINDS[index % len(KINDS)], points, [f"{a:g}, {b:.4g}" for a, b in points])
        for index, (name, points) in enumerate(series.items())
    ]
    show(title, curves(drawn, x, y, title, width=560))


def grid(
    title: str,
    values: Sequence[Sequence[float]],
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    up: str = "query",
    across: str = "key",
) -> None:
    """Show a matrix as shaded cells; positions are numbered unless they have names."""
    rows = [str(index) for index in range(len(values))] if rows is None else rows
    columns = [str(index) for index in range(len(values[0]))] if columns is None else columns
    show(title, heat_map(title, rows, columns, values, across=across, up=up))
