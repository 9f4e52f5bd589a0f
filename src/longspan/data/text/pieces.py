"""A text larger than memory in pieces, cut where tokens end."""

import re
from collections.abc import Iterator
from pathlib import Path

from longspan.data.text.text_files import blocks

PIECE = 1 << 20  # characters that are cut into tokens at once


def pieces(path: Path, size: int = PIECE) -> Iterator[str]:
    """A text in pieces of about `size` characters, cut where tokens end: before a space, or the end of a line."""
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
        # Looked for in the last part first: almost always it is there.
        for start in (max(0, len(held) - 1000), 0):
            found = [match.start() + 1 for match in re.finditer(pattern, held[start:])]
            if found:
                return start + found[-1]
    return len(held)


__all__ = ["PIECE", "pieces"]
