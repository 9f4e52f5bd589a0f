"""Read JSON and text files, with errors that name them."""

from pathlib import Path
from typing import Any

from longspan.parsing import MOST_TEXT, read_json_table
from longspan.parsing import read_text as read_any_text


def read_json(path: Path) -> dict[str, Any]:
    """The table of a JSON file; an empty one if there is no file."""
    return read_json_table(path) if path.is_file() else {}


def read_text(path: Path) -> str:
    """The text of a settings or vocabulary file, with its line ends unchanged."""
    return read_any_text(path, MOST_TEXT)


__all__ = ["read_json", "read_text"]
