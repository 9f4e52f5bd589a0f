"""Render the numbered scripts of this folder to pages.

    python -m examples.render --out tour [01 02 …]

A script has cells: `# %% [markdown]` begins prose, in comments; `# %%` begins code. All code of a script runs in one
namespace; what a cell prints and shows stands below it.
"""

import argparse
import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from examples import pictures
from longspan.report import charts, palette, plots
from longspan.report.page import Html, page, tag
from longspan.report.theme import SCRIPT, STYLE

HERE = Path(__file__).parent
CELL = re.compile(r"^# %%(?: \[markdown\])?$", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    prose: bool
    text: str
    line: int  # of its first line in the script


def scripts() -> list[Path]:
    """The numbered scripts, in order."""
    return sorted(HERE.glob("[0-9][0-9]_*.py"))


def cells(source: str) -> list[Cell]:
    """The cells of a script; what stands before the first one is its docstring, which belongs to none."""
    marks = list(CELL.finditer(source))
    found = []
    for mark, after in zip(marks, [*marks[1:], None]):
        content = source[mark.end() : after.start() if after else len(source)].strip("\n")
        prose = "[markdown]" in mark.group()
        if prose:
            content = re.sub(r"^# ?", "", content, flags=re.MULTILINE)
        found.append(Cell(prose, content, source.count("\n", 0, mark.end()) + 2))
    return found


def title(script: Path) -> str:
    """The first heading of a script."""
    return next(cell.text.splitlines()[0].lstrip("# ") for cell in cells(script.read_text(encoding="utf-8")))


def render(script: Path) -> str:
    """Run a script and return its page."""
    prose = MarkdownIt("commonmark", {"html": False})
    parts: list[Html] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells(script.read_text(encoding="utf-8")):
        if cell.prose:
            parts.append(Html(prose.render(cell.text)))
            continue
        printed, shown = io.StringIO(), list[Html]()
        pictures.collect(shown)
        try:
            code = compile("\n" * (cell.line - 1) + cell.text, str(script), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, names)
        finally:
            pictures.collect(None)
        parts.append(tag("pre", tag("code", cell.text)))
        if printed.getvalue():
            parts.append(tag("pre", printed.getvalue().rstrip("\n"), css="output"))
        parts.extend(tag("figure", picture) for picture in shown)
    style = charts.STYLE + palette.style() + plots.STYLE + STYLE
    style += "pre { max-width: 60rem; } pre.output { border-left: 4px solid var(--line); }"
    return page(title(script), *parts, style=style, script=SCRIPT)


def index(chosen: list[Path]) -> str:
    """The page that links all others."""
    steps = [Html(f'<li><a href="{script.stem}.html">{tag("span", title(script))}</a></li>') for script in chosen]
    return page("The tour", tag("h1", "The tour"), tag("ol", *steps), style=STYLE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Render the examples to pages.")
    parser.add_argument("numbers", nargs="*", help="such as 01 02; default: all")
    parser.add_argument("--out", type=Path, default=Path("tour"))
    given = parser.parse_args()
    chosen = [script for script in scripts() if not given.numbers or script.name[:2] in given.numbers]
    if not chosen:
        parser.error(f"no script has a number of {given.numbers}; there are {[path.name[:2] for path in scripts()]}")
    given.out.mkdir(parents=True, exist_ok=True)
    for script in chosen:
        print(f"{script.name} …", flush=True)
        (given.out / f"{script.stem}.html").write_text(render(script), encoding="utf-8")
    (given.out / "index.html").write_text(index(chosen), encoding="utf-8")
    print(f"wrote {given.out / 'index.html'}")


if __name__ == "__main__":
    main()
