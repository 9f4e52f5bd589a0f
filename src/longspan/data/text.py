"""Text files, plain or packed, with errors that name file and line."""

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from re import Pattern
from typing import IO, Any, cast

from longspan.errors import InvalidInput

PACKED: dict[str, Callable[[Path], IO[bytes]]] = {
    ".gz": lambda path: cast(IO[bytes], gzip.GzipFile(path)),
    ".bz2": lambda path: cast(IO[bytes], bz2.BZ2File(path)),
    ".xz": lambda path: cast(IO[bytes], lzma.LZMAFile(path)),  # noqa: SIM115  (whoever calls closes it)
}
DAMAGED = (EOFError, OSError, lzma.LZMAError, zlib.error)  # what reading a packed file can raise
RATIO, ALWAYS = 250, 1 << 26  # text packs 3 to 10 times smaller; so many bytes are unpacked whatever the ratio
PIECE = 1 << 16  # characters


def open_bytes(path: Path) -> IO[bytes]:
    """The content of a file, unpacked; one that unpacks to much more than it can honestly hold is refused there."""
    try:
        return io.BufferedReader(_Unpacked(path), 1 << 16) if path.suffix in PACKED else path.open("rb")
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}") from None
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a folder, and a file was expected") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from None


def most_unpacked(path: Path) -> int:
    """The most bytes that a packed file may unpack to."""
    return max(ALWAYS, RATIO * path.stat().st_size)


class _Unpacked(io.RawIOBase):
    """What a packed file holds, up to the limit."""

    def __init__(self, path: Path) -> None:
        self.path, self.left = path, most_unpacked(path)
        self.inner = PACKED[path.suffix](path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.inner.read(len(buffer))
        self.left -= len(part)
        if self.left < 0:
            raise InvalidInput(
                f"{self.path} has {self.path.stat().st_size:,} bytes and unpacks to more than "
                f"{most_unpacked(self.path):,}: it is not read; unpack it yourself if it is what you want"
            )
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        if not self.closed:
            self.inner.close()
        super().close()


def lines(path: Path) -> Iterator[str]:
    """The lines of a file, without their ends; the file is never whole in memory."""
    return (line.rstrip("\r\n") for line in _raw(path))


def _raw(path: Path) -> Iterator[str]:
    number = 0
    try:
        with open_bytes(path) as file:
            for line in file:
                number += 1
                yield line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path}, line {number}: not UTF-8: {error.reason} at byte {error.start} of the line"
        ) from None
    except DAMAGED as error:
        raise InvalidInput(f"{path} is cut short or damaged after line {number}: {error}") from None


def whole(path: Path) -> str:
    """All of a file."""
    try:
        with open_bytes(path) as file:
            found = file.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except DAMAGED as error:
        raise InvalidInput(f"{path} is cut short or damaged: {error}") from None
    if not found.strip():
        raise InvalidInput(f"{path} is empty")
    return found


def blocks(path: Path, size: int) -> Iterator[str]:
    """A file in parts of about `size` bytes, which end anywhere between two characters."""
    decoder, read = codecs.getincrementaldecoder("utf-8")(), 0
    try:
        with open_bytes(path) as file:
            while part := file.read(size):
                yield decoder.decode(part)
                read += len(part)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8: {error.reason} near byte {read + error.start}") from None
    except DAMAGED as error:
        raise InvalidInput(f"{path} is cut short or damaged: {error}") from None
    if not read:
        raise InvalidInput(f"{path} is empty")


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


@dataclass(frozen=True)
class Part:
    """The characters start..stop-1 of a file, or all of them."""

    path: Path
    start: int = 0
    stop: int | None = None

    def pieces(self, title: Pattern[str] | None = None) -> Iterator[str]:
        """The text in pieces, which together are it to the letter; it is never whole in memory.

        With `title`, a line that is one and comes after an empty one begins a piece, which is then a document. Without,
        pieces are of `PIECE` characters or more, and end with an empty line where there is one.
        """
        place = 0
        for piece in _pieces(self.path, title):
            first = max(self.start - place, 0)
            last = len(piece) if self.stop is None else min(self.stop - place, len(piece))
            if first < last:
                yield piece[first:last]
            place += len(piece)


def _pieces(path: Path, title: Pattern[str] | None) -> Iterator[str]:
    held: list[str] = []
    size, after_empty = 0, True
    for line in _raw(path):
        empty = not line.strip()
        if title is None:
            # A file without empty lines is cut at the end of a line, and one of a single line not at all.
            begins = size >= PIECE and ((after_empty and not empty) or size >= 16 * PIECE)
        else:
            begins = after_empty and title.fullmatch(line.strip()) is not None and any(map(str.strip, held))
        if begins:
            yield "".join(held)
            held, size = [], 0
        held.append(line)
        size, after_empty = size + len(line), empty
    if held:
        yield "".join(held)


__all__ = ["DAMAGED", "PACKED", "Part", "blocks", "documents", "lines", "most_unpacked", "open_bytes", "whole"]
