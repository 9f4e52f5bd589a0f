"""The texts of a table or of a folder of files, for tasks that read documents; never whole in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from re import Pattern

from longspan.data.text.tables import TableRow, rows
from longspan.errors import InvalidInput


@dataclass(frozen=True)
class RowTexts:
    """The texts in a column; `numbers` are those of the rows that are read, or None for all. Empty ones are skipped."""

    path: Path
    column: str = "text"
    encoding: str | None = None
    numbers: frozenset[int] | None = None

    def rows(self) -> Iterator[TableRow]:
        for number, row in enumerate(self._filled()):
            if self.numbers is None or number in self.numbers:
                yield row

    def texts(self) -> Iterator[str]:
        return (row.fields[self.column].strip() for row in self.rows())

    def pieces(self, title: Pattern[str] | None = None) -> Iterator[str]:
        """The texts as documents: an empty line follows each."""
        return (f"{text}\n\n" for text in self.texts())

    def count(self) -> tuple[int, list[TableRow]]:
        """The number of rows with a text, and the rows without."""
        count = 0
        empty = []
        for row in rows(self.path, [self.column], encoding=self.encoding):
            if row.fields[self.column].strip():
                count += 1
            else:
                empty.append(row)
        if not count:
            raise InvalidInput(f"{self.path}: every {self.column!r} is empty")
        return count, empty

    def _filled(self) -> Iterator[TableRow]:
        for row in rows(self.path, [self.column], encoding=self.encoding):
            if row.fields[self.column].strip():
                yield row


__all__ = ["RowTexts"]
