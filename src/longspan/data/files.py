"""Files of text and of JSON, with errors that name them."""

from pathlib import Path
from typing import Any

from longspan.parsing import MOST_TEXT, read_json_table
from longspan.parsing import read_text as read_any_text


def read_json(path: Path) -> dict[str, Any]:
    """The table in a file; none where there is no file."""
    return read_json_table(path) if path.is_file() else {}


def read_text(path: Path) -> str:
    """The text of a file of settings or of a vocabulary; its line ends stay as they are."""
    return read_any_text(path, MOST_TEXT)


__all__ = ["read_json", "read_text"]
