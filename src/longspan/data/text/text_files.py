"""Read text files, plain or compressed, with errors that name file and line."""

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from re import Pattern
from typing import IO, Any, cast

from longspan.errors import InvalidInput, InvalidOption

PACKED: dict[str, Callable[[Path], IO[bytes]]] = {
    ".gz": lambda path: cast(IO[bytes], gzip.GzipFile(path)),
    ".bz2": lambda path: cast(IO[bytes], bz2.BZ2File(path)),
    ".xz": lambda path: cast(IO[bytes], lzma.LZMAFile(path)),  # noqa: SIM115  (the caller closes it)
}
DAMAGED = (EOFError, OSError, lzma.LZMAError, zlib.error)  # what reading a packed file can raise
RATIO, ALWAYS = 250, 1 << 26  # largest compression ratio (text has 3 to 10), and bytes that are unpacked at any ratio
PIECE = 1 << 16  # characters
# Byte order marks; a longer one is before its own prefix.
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
PLAIN = {"utf-8-sig": "utf-8"}  # after the first line, which has the mark
NAMES = {"utf-8": "UTF-8", "utf-8-sig": "UTF-8"}


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file and decompress it; a decompression bomb is refused while reading."""
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
    """The content of a compressed file, up to the limit."""

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


def encoding_of(file: IO[bytes], given: str | None = None) -> str:
    """The encoding of an open file: `given`, that of its byte order mark, or UTF-8."""
    if given is not None:
        try:
            io.TextIOWrapper(io.BytesIO(), given)  # also refuses codecs that are not text encodings
            return codecs.lookup(given).name
        except LookupError:
            raise InvalidOption(f'no encoding is called {given!r}; give one such as "cp1252" or "utf-16"') from None
    first = cast(Any, file).peek(4)
    return next((name for mark, name in MARKS.items() if first.startswith(mark)), "utf-8")


def lines(path: Path, encoding: str | None = None) -> Iterator[str]:
    """The lines of a file, without their ends; the file is never whole in memory."""
    return (line.rstrip("\r\n") for line in _raw(path, encoding))


def _raw(path: Path, encoding: str | None = None) -> Iterator[str]:
    number, wide = 0, False
    try:
        with open_bytes(path) as file:
            name = encoding_of(file, encoding)
            # UTF-16 and UTF-32 must be decoded before they can be split into lines.
            wide = name.startswith(("utf-16", "utf-32"))
            if wide:
                with io.TextIOWrapper(cast(Any, file), name, newline="\n") as decoded:
                    for text in decoded:
                        number += 1
                        yield text
                return
            for line in file:
                number += 1
                yield line.decode(name if number == 1 else PLAIN.get(name, name))
    except UnicodeDecodeError as error:
        where = f"{path}, after line {number}" if wide else f"{path}, line {number}"
        raise InvalidInput(_not_decoded(error, where, "" if wide else " of the line")) from None
    except DAMAGED as error:
        raise InvalidInput(f"{path} is cut short or damaged after line {number}: {error}") from None


def _not_decoded(error: UnicodeDecodeError, where: str, unit: str = "") -> str:
    """The error for bytes that cannot be decoded, with what they would be in cp1252, Windows' usual encoding."""
    name = NAMES.get(error.encoding, error.encoding)
    said = f"{where}: not {name}: {error.reason} at byte {error.start}{unit}"
    if name != "UTF-8":
        return said
    begin = max(error.start - 8, 0)
    near = error.object[begin : error.end + 8].decode("cp1252", errors="replace")
    return f"{said}; in the encoding cp1252 it is {near!r}"


@contextmanager
def hinting() -> Iterator[None]:
    """Add the option `encoding` to an error about text that looks like cp1252."""
    try:
        yield
    except InvalidInput as error:
        hint = '; if that is right, give the task encoding = "cp1252" (--encoding cp1252)'
        raise InvalidInput(f"{error}{hint}" if "in the encoding cp1252 it is" in str(error) else str(error)) from None


def whole(path: Path, encoding: str | None = None, *, empty: bool = False) -> str:
    """The whole text of a file, which may be `empty` only if that is said."""
    try:
        with open_bytes(path) as file:
            name = encoding_of(file, encoding)
            text = file.read().decode(name)
    except UnicodeDecodeError as error:
        line = bytes(error.object).count(b"\n", 0, error.start) + 1
        raise InvalidInput(_not_decoded(error, f"{path}, line {line}", " of the file")) from None
    except DAMAGED as error:
        raise InvalidInput(f"{path} is cut short or damaged: {error}") from None
    if not empty and not text.strip():
        raise InvalidInput(f"{path} is empty")
    return text


def blocks(path: Path, size: int) -> Iterator[str]:
    """A file in blocks of about `size` bytes, cut between any two characters."""
    read = 0
    try:
        with open_bytes(path) as file:
            decoder = codecs.getincrementaldecoder(encoding_of(file))()
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


def documents(path: Path, encoding: str | None = None) -> Iterator[str]:
    """The parts of a file that empty lines separate."""
    held: list[str] = []
    for line in lines(path, encoding):
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
    encoding: str | None = None

    def split(self, share: float) -> tuple["Part", "Part"]:
        """The text, cut in two: the second part has about `share` of the characters."""
        with hinting():
            size = sum(map(len, self.pieces()))
        cut = round(size * (1 - share))
        if size == 0:
            raise InvalidInput(f"{self.path} is empty")
        if not 0 < cut < size:
            raise InvalidInput(f"{self.path} has {size} characters, too few to hold some out")
        return replace(self, start=0, stop=cut), replace(self, start=cut)

    def pieces(self, title: Pattern[str] | None = None) -> Iterator[str]:
        """The text in pieces that add up to it exactly; it is never whole in memory.

        With `title`, a title line after an empty line begins a piece, so that a piece is a document. Without, pieces
        have at least `PIECE` characters and end at an empty line if there is one.
        """
        position = 0
        for piece in _pieces(self.path, title, self.encoding):
            first = max(self.start - position, 0)
            last = len(piece) if self.stop is None else min(self.stop - position, len(piece))
            if first < last:
                yield piece[first:last]
            position += len(piece)


def _pieces(path: Path, title: Pattern[str] | None, encoding: str | None) -> Iterator[str]:
    held: list[str] = []
    size, after_empty = 0, True
    for line in _raw(path, encoding):
        empty = not line.strip()
        if title is None:
            # A file without empty lines is cut at a line end; a file of one line is not cut.
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


__all__ = [
    "DAMAGED",
    "PACKED",
    "Part",
    "blocks",
    "documents",
    "encoding_of",
    "hinting",
    "lines",
    "most_unpacked",
    "open_bytes",
    "whole",
]
