"""Files from the network, for users who have one: by https, to a temporary file, used only if the checksum fits."""

import errno
import gzip
import hashlib
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast
from urllib.parse import urlsplit

from longspan.data.sources import Source
from longspan.data.text import DAMAGED, PACKED
from longspan.errors import InvalidInput

LARGEST = 4 << 30  # bytes of a file, packed or not: more is not what was asked for
CHUNK = 1 << 20
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # a second attempt would not help
TIMEOUT = 60.0
HERE = ("127.0.0.1", "localhost", "::1")  # this machine, to which nobody listens in
Show = Callable[[int, int | None], None]  # bytes that came, of how many


class _Wrong(Exception):
    """What came is not what was asked for, or did not come; once more may help."""


def fetch(source: Source, target: Path, *, show: Show = lambda came, total: None) -> None:
    """The file of a source, checked; tried twice. Nothing is left behind where it fails."""
    assert source.url is not None
    _check_address(source.url)
    target.parent.mkdir(parents=True, exist_ok=True)
    problem = ""
    for _ in range(2):
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as folder:
            came, made = Path(folder) / "came", Path(folder) / "made"
            try:
                _download(source.url, came, show)
                _check_and_pack(source, came, made, target.suffix)
            except _Wrong as error:
                problem = str(error)
                continue
            made.replace(target)
            return
    raise InvalidInput(f"{source.url} could not be had, twice: {problem}")


def digest(path: Path) -> str:
    """The checksum of a file's content, unpacked."""
    with _content(path, path.suffix) as file:
        return _copy(file, None)


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in HERE):
        raise InvalidInput(f"{url} is not https; nothing else is downloaded from")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A server may send on to other addresses, but to safe ones only."""

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
            came = 0
            while chunk := answer.read(CHUNK):
                came += len(chunk)
                if came > LARGEST:
                    raise InvalidInput(f"{url} has more than {LARGEST} bytes; it is not what was asked for")
                file.write(chunk)
                show(came, total)
    except (urllib.error.URLError, OSError) as error:
        if error.errno in NO_ROOM:
            raise OSError(error.errno, error.strerror, str(target.parent)) from None
        raise _Wrong(str(getattr(error, "reason", None) or error)) from None
    if total is not None and came != total:
        raise _Wrong(f"{came} of {total} bytes came")


def _check_and_pack(source: Source, came: Path, made: Path, ending: str) -> None:
    """Unpacks what came, compares its checksum, and packs it as the file's name says."""
    assert source.url is not None
    packing = PurePosixPath(urlsplit(source.url).path).suffix
    try:
        with _member(came, source.member) if source.member else _content(came, packing) as file:
            if source.member is None and packing == ending:
                found = _copy(file, None)
                came.replace(made)  # as its authors packed it
            elif ending == ".gz":
                with gzip.GzipFile(made, "wb", mtime=0) as packed:
                    found = _copy(file, cast(IO[bytes], packed))
            else:
                with made.open("wb") as plain:
                    found = _copy(file, plain)
    except (OSError, zipfile.BadZipFile, tarfile.TarError, *DAMAGED) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise OSError(error.errno, error.strerror, str(made.parent)) from None
        raise _Wrong(f"what came cannot be unpacked: {error}") from None
    if found != source.sha256:
        raise _Wrong(f"its checksum is {found[:16]}…, and {source.sha256[:16]}… was expected")


@contextmanager
def _content(path: Path, packing: str) -> Iterator[IO[bytes]]:
    with PACKED[packing](path) if packing in PACKED else path.open("rb") as file:
        yield file


@contextmanager
def _member(path: Path, name: str) -> Iterator[IO[bytes]]:
    """One file of an archive, read and never unpacked to the name it gives; an archive that tries tricks is refused."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for each in archive.infolist():
                _check_name(each.filename, link=(each.external_attr >> 16) & 0o170000 == 0o120000)
            if name not in archive.namelist():
                raise _Wrong(f"the archive has no {name}")
            with archive.open(name) as file:
                yield file
        return
    with tarfile.open(path) as tar:
        for member in tar.getmembers():
            _check_name(member.name, link=not (member.isfile() or member.isdir()))
        if name not in tar.getnames():
            raise _Wrong(f"the archive has no {name}")
        found = tar.extractfile(name)
        if found is None:
            raise _Wrong(f"{name} of the archive is a folder")
        with found:
            yield found


def _check_name(name: str, *, link: bool) -> None:
    plain = name.replace("\\", "/")
    if link:
        raise InvalidInput(f"the archive has a link or device, {name!r}; it is not used")
    if plain.startswith("/") or ":" in plain.split("/")[0] or ".." in plain.split("/"):
        raise InvalidInput(f"the archive has a member that would lie outside of it, {name!r}; it is not used")


def _copy(source: IO[bytes], target: IO[bytes] | None) -> str:
    """Copies, and says the checksum."""
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
