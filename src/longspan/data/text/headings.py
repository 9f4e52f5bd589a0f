"""Sections of WikiText and their headings, as texts and very short summaries."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from longspan.data.text import text_files
from longspan.data.text.corpora import HEADING, TITLE, UNKNOWN, sentences
from longspan.data.text.tables import TableRow, ending

ENDING = ".tokens"  # of WikiText's files


def is_wikitext(path: Path) -> bool:
    """Whether a file is WikiText by its ending."""
    return ending(path) == ENDING


def headed_sections(path: Path, text: str = "text", summary: str = "summary") -> Iterator[TableRow]:
    """A row for each section with text of its own: its sentences, one per line, and its heading.

    Titles of articles are no headings: the first paragraphs belong to none. A heading with an unknown word is left out,
    with its section. Marks inside words are undone.
    """
    heading: tuple[int, str] | None = None
    held: list[str] = []
    before, line = "", ""
    for number, after in enumerate(chain(text_files.lines(path), [""])):  # of `line`, counted from 1
        after = after.strip()
        if HEADING.fullmatch(line) and not before and not after:
            if heading is not None and held:
                yield TableRow(path, heading[0], {text: "\n".join(held), summary: heading[1]})
            known = not TITLE.fullmatch(line) and UNKNOWN not in line
            heading = (number, " ".join(sentences(line.strip("= ")))) if known else None
            held = []
        elif line and heading is not None:
            held.extend(sentences(line))
        before, line = line, after
    if heading is not None and held:
        yield TableRow(path, heading[0], {text: "\n".join(held), summary: heading[1]})


__all__ = ["ENDING", "headed_sections", "is_wikitext"]
