"""Download files over https to a temporary file, and keep them only if the checksum matches.

Written here, not with `pooch`: that package has no limit on size or speed, follows redirects to any address, and
checks the compressed file; here the checksum is that of the content, one file of an archive is read without unpacking
the others, and nothing is left behind after a failure.
"""

import errno
import gzip
import hashlib
import http.client
import io
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import IO, Any, cast
from urllib.parse import urlsplit

from longspan.data.sets.sources import DataSource
from longspan.data.text.text_files import PACKED
from longspan.errors import InvalidInput

LARGEST = 4 << 30  # bytes of a file, compressed or not
CHUNK = 1 << 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # errors that a second attempt cannot fix
TIMEOUT = 60.0
LEAST = 1 << 14  # bytes that must arrive in that time: a server must not keep us waiting for ever
HERE = ("127.0.0.1", "localhost", "::1")  # this machine, where http is safe
Show = Callable[[int, int | None], None]  # bytes so far, and of how many


class _Failed(Exception):
    """A download failed in a way that a second attempt may fix."""


def fetch(source: DataSource, target: Path, *, show: Show = lambda came, total: None) -> None:
    """Download and check the file of a source, in two attempts. A failure leaves nothing behind."""
    assert source.url is not None
    _check_address(source.url)
    target.parent.mkdir(parents=True, exist_ok=True)
    problem = ""
    for _ in range(2):
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
            downloaded, packed = Path(folder) / "downloaded", Path(folder) / "packed"
            try:
                _download(source.url, downloaded, show)
                _check_and_pack(source, downloaded, packed, target.suffix)
            except _Failed as error:
                problem = str(error)
                continue
            packed.replace(target)
            return
    raise InvalidInput(f"{source.url}: download failed after 2 attempts: {problem}")


def digest(path: Path) -> str:
    """The checksum of a file's decompressed content."""
    with _content(path, path.suffix) as file:
        return _copy(file, None)


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in HERE):
        raise InvalidInput(f"{url} is not https; nothing else is downloaded from")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but only to https."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download(url: str, target: Path, show: Show) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "longspan"})
    try:
        with (
            urllib.request.build_opener(_Redirects).open(request, timeout=TIMEOUT) as answer,
            target.open("wb") as file,
        ):
            length = answer.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            came = before = 0
            since = monotonic()
            while chunk := answer.read1(CHUNK):
                came += len(chunk)
                if monotonic() - since > TIMEOUT:
                    if came - before < LEAST:
                        raise _Failed(f"only {came - before} bytes came in {TIMEOUT:g} seconds")
                    since, before = monotonic(), came
                if came > LARGEST:
                    raise InvalidInput(f"{url} has more than {LARGEST} bytes; it is not what was asked for")
                file.write(chunk)
                show(came, total)
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise OSError(error.errno, error.strerror, str(target.parent)) from None
        raise _Failed(str(getattr(error, "reason", None) or error) or type(error).__name__) from None
    if total is not None and came != total:
        raise _Failed(f"{came} of {total} bytes came")


def _check_and_pack(source: DataSource, came: Path, made: Path, ending: str) -> None:
    """Unpacks a download, compares its checksum, and compresses it as the ending of the file's name says."""
    assert source.url is not None
    packing = PurePosixPath(urlsplit(source.url).path).suffix
    try:
        with _member(came, source.member) if source.member else _content(came, packing) as file:
            if source.member is None and packing == ending:
                found = _copy(file, None)
                came.replace(made)  # keep the authors' compression
            elif ending == ".gz":
                with gzip.GzipFile(made, "wb", mtime=0) as packed:
                    found = _copy(file, cast(IO[bytes], packed))
            else:
                with made.open("wb") as plain:
                    found = _copy(file, plain)
    except (InvalidInput, _Failed):
        raise
    except Exception as error:  # encrypted, unknown compression or damaged: archives fail in any way
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise OSError(error.errno, error.strerror, str(made.parent)) from None
        raise _Failed(f"what came cannot be unpacked: {str(error) or type(error).__name__}") from None
    if found != source.sha256:
        raise _Failed(f"its checksum is {found[:16]}…, and {source.sha256[:16]}… was expected")


@contextmanager
def _content(path: Path, packing: str) -> Iterator[IO[bytes]]:
    with PACKED[packing](path) if packing in PACKED else path.open("rb") as file:
        yield file


@contextmanager
def _member(path: Path, name: str) -> Iterator[IO[bytes]]:
    """Opens one file of an archive without extracting it; links and paths outside the archive are refused."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for each in archive.infolist():
                _check_name(each.filename, link=(each.external_attr >> 16) & 0o170000 == 0o120000)
            if name not in archive.namelist():
                raise _Failed(f"the archive has no {name}")
            with archive.open(name) as file:
                yield file
        return
    with _unpacked(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as tar:
        for member in tar.getmembers():
            _check_name(member.name, link=not (member.isfile() or member.isdir()))
        if name not in tar.getnames():
            raise _Failed(f"the archive has no {name}")
        found = tar.extractfile(name)
        if found is None:
            raise _Failed(f"{name} of the archive is a folder")
        with found:
            yield found


PACKINGS = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ": ".xz"}  # by their first bytes


def _unpacked(path: Path) -> IO[bytes]:
    """The content of a compressed archive, of which at most `LARGEST` bytes are unpacked."""
    with path.open("rb") as file:
        first = file.read(6)
    packing = next((ending for mark, ending in PACKINGS.items() if first.startswith(mark)), "")
    return io.BufferedReader(_Capped(PACKED[packing](path))) if packing else path.open("rb")


class _Capped(io.RawIOBase):
    def __init__(self, inner: IO[bytes]) -> None:
        self.inner = inner

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.inner.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET and offset > LARGEST:
            raise InvalidInput(f"what was packed has more than {LARGEST} bytes; it is not used")
        return self.inner.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        part = self.inner.read(len(buffer))
        if self.inner.tell() > LARGEST:
            raise InvalidInput(f"what was packed has more than {LARGEST} bytes; it is not used")
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        if not self.closed:
            self.inner.close()
        super().close()


def _check_name(name: str, *, link: bool) -> None:
    plain = name.replace("\\", "/")
    if link:
        raise InvalidInput(f"the archive has a link or device, {name!r}; it is not used")
    if plain.startswith("/") or ":" in plain.split("/")[0] or ".." in plain.split("/"):
        raise InvalidInput(f"the archive has a member that would lie outside of it, {name!r}; it is not used")


def _copy(source: IO[bytes], target: IO[bytes] | None) -> str:
    """Copies, and returns the checksum."""
    found, size = hashlib.sha256(), 0
    while chunk := source.read(CHUNK):
        size += len(chunk)
        if size > LARGEST:
            raise InvalidInput(f"what was packed has more than {LARGEST} bytes; it is not used")
        found.update(chunk)
        if target is not None:
            target.write(chunk)
    return found.hexdigest()


__all__ = ["digest", "fetch"]
