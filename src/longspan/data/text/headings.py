"""Paragraphs of WikiText and the headings of their sections, as texts and very short summaries."""

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


def headed_paragraphs(path: Path, text: str = "text", summary: str = "summary") -> Iterator[TableRow]:
    """A row for each paragraph of a section: its sentences, one per line, and the section's heading.

    Titles of articles are no headings: the first paragraphs belong to none. A section whose heading has an unknown word
    is left out. Marks inside words are undone.
    """
    heading: str | None = None
    before, line = "", ""
    for number, after in enumerate(chain(text_files.lines(path), [""])):  # of `line`, counted from 1
        after = after.strip()
        if HEADING.fullmatch(line) and not before and not after:
            known = not TITLE.fullmatch(line) and UNKNOWN not in line
            heading = " ".join(sentences(line.strip("= "))) if known else None
        elif line and heading is not None:
            yield TableRow(path, number, {text: "\n".join(sentences(line)), summary: heading})
        before, line = line, after


__all__ = ["ENDING", "headed_paragraphs", "is_wikitext"]
