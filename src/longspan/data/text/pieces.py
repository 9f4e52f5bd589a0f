"""Read a text larger than memory in pieces, cut between words."""

import re
from collections.abc import Iterator
from pathlib import Path

from longspan.data.text.text_files import blocks

PIECE = 1 << 20  # characters tokenised at once


def pieces(path: Path, size: int = PIECE) -> Iterator[str]:
    """A text in pieces of about `size` characters, cut before a space or a line end."""
    held = ""
    for part in blocks(path, size):
        held += part
        if len(held) < size:
            continue
        cut = _border(held)
        yield held[:cut]
        held = held[cut:]
    if held:
        yield held


def _border(held: str) -> int:
    for pattern in (r"\S (?=\S)", r"\S(?=\s)"):
        # Search the last part first: almost always there is one.
        for start in (max(0, len(held) - 1000), 0):
            found = [match.start() + 1 for match in re.finditer(pattern, held[start:])]
            if found:
                return start + found[-1]
    return len(held)


__all__ = ["PIECE", "pieces"]
