"""Files that may be packed, read in parts: a text larger than memory, cut where tokens end."""

import codecs
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from longspan.data.text import PACKED
from longspan.errors import InvalidInput

PIECE = 1 << 20  # characters that are cut into tokens at once


def open_bytes(path: Path) -> IO[bytes]:
    """The content of a file, unpacked."""
    try:
        return PACKED[path.suffix](path) if path.suffix in PACKED else path.open("rb")
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}") from None
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a folder, and a file was expected") from None


def blocks(path: Path, size: int) -> Iterator[str]:
    """A text in parts of about `size` bytes, which end anywhere between two characters."""
    decoder, read = codecs.getincrementaldecoder("utf-8")(), 0
    try:
        with open_bytes(path) as file:
            while part := file.read(size):
                yield decoder.decode(part)
                read += len(part)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: {error.reason} near byte {read + error.start}") from None
    except (EOFError, OSError, zlib.error) as error:
        raise InvalidInput(f"{path} is cut short or damaged: {error}") from None
    if not read:
        raise InvalidInput(f"{path} is empty")


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


__all__ = ["PIECE", "blocks", "open_bytes", "pieces"]
