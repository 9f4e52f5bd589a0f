"""Find the documents of a text: files of a folder, parts between empty lines, parts after headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from longspan.data.text import text_files
from longspan.data.text.corpora import TITLE
from longspan.errors import InvalidInput, InvalidOption

KINDS = ("files", "blank", "headings", "rows")  # rows of a table are `RowTexts`
HEADINGS = f"# .*|{TITLE.pattern}"  # of Markdown, and of WikiText


@dataclass(frozen=True)
class Documents:
    """The documents of a file or folder, in order; with `start` and `stop`, some of them.

    - `files`: each file of a folder and its sub-folders, by name; hidden files are left out.
    - `blank`: parts of a file that empty lines separate.
    - `headings`: a line that matches `heading` as a whole, after an empty line, begins a document.

    Documents are read one at a time, so that the text is never whole in memory.
    """

    path: Path
    kind: str
    heading: str = HEADINGS
    start: int = 0
    stop: int | None = None

    def __iter__(self) -> Iterator[str]:
        for number, document in enumerate(self._all()):
            if self.stop is not None and number >= self.stop:
                return
            if number >= self.start:
                yield document

    def pieces(self) -> Iterator[str]:
        """The documents."""
        return iter(self)

    def split(self, share: float) -> tuple["Documents", "Documents"]:
        """The first documents, and the last ones with about `share` of the text; both have one at least."""
        sizes = [len(document) for document in self]
        if len(sizes) < 2:
            raise InvalidInput(
                f"{self.path} has {len(sizes)} documents, too few to hold some out: "
                f"say by documents what one is ({', '.join(KINDS)}), or give held_out, another path"
            )
        cut, left = len(sizes) - 1, share * sum(sizes) - sizes[-1]
        while cut > 1 and left >= sizes[cut - 1] / 2:
            cut -= 1
            left -= sizes[cut]
        return replace(self, stop=cut), replace(self, start=cut)

    def _all(self) -> Iterator[str]:
        if self.path.is_dir() and self.kind != "files":
            raise InvalidInput(f'{self.path} is a folder; give documents = "files" to read each file as a document')
        if self.kind == "files":
            for path in self._files():
                yield from _some(text_files.whole(path))
        elif self.kind == "blank":
            yield from text_files.documents(self.path)
        else:
            for part in text_files.Part(self.path).pieces(_pattern(self.heading)):
                yield from _some(part)

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        visible = [
            path
            for path in sorted(self.path.rglob("*"))
            if path.is_file() and not any(name.startswith(".") for name in path.relative_to(self.path).parts)
        ]
        if not visible:
            raise InvalidInput(f"{self.path} has no files")
        return visible


def _pattern(heading: str) -> re.Pattern[str]:
    try:
        return re.compile(heading)
    except re.error as error:
        raise InvalidOption(f"heading must be a regular expression, not {heading!r}: {error}") from None


def _some(document: str) -> Iterator[str]:
    """The document, unless it is blank."""
    if document.strip():
        yield document


__all__ = ["HEADINGS", "KINDS", "Documents"]
