"""Text files, plain or packed, with errors that name file and line."""

import bz2
import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from longspan.errors import InvalidInput

PACKED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def _open(path: Path) -> IO[bytes]:
    opened = PACKED.get(path.suffix)
    try:
        return path.open("rb") if opened is None else opened(path, "rb")  # type: ignore[return-value]
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}") from None
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a folder, and a file was expected") from None


def lines(path: Path) -> Iterator[str]:
    """The lines of a file, without their ends; the file is never whole in memory."""
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path}, line {number}: not UTF-8: {error.reason} at byte {error.start} of the line"
        ) from None
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise InvalidInput(f"{path} is cut short or damaged after line {number}: {error}") from None


def whole(path: Path) -> str:
    """All of a file."""
    try:
        with _open(path) as file:
            found = file.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise InvalidInput(f"{path} is cut short or damaged: {error}") from None
    if not found.strip():
        raise InvalidInput(f"{path} is empty")
    return found


def documents(path: Path) -> Iterator[str]:
    """The parts of a file that empty lines separate."""
    held: list[str] = []
    for line in lines(path):
        if line.strip():
            held.append(line)
        elif held:
            yield "\n".join(held)
            held = []
    if held:
        yield "\n".join(held)


__all__ = ["documents", "lines", "whole"]
