"""Files of text and of JSON, with errors that name them."""

import json
from pathlib import Path
from typing import Any

from longspan.errors import InvalidInput


def read_json(path: Path) -> dict[str, Any]:
    """The table in a file; none where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} must be a table, not {type(found).__name__}")
    return found


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")  # line ends stay as they are
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None


__all__ = ["read_json", "read_text"]
