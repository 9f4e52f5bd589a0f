"""Atomic file writes: a failure leaves no half-written file.

A file appears under its name only when it is complete. Its mode follows the umask (`tempfile` and safetensors create
files that only their owner can read). Errors name the file.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how Rust libraries (safetensors, tokenizers) report one
_SHORT = re.compile(r"\d+ requested and \d+ written")
_unfinished: set[Path] = set()


def cache() -> Path:
    """The cache folder: LONGSPAN_CACHE, or `longspan` in the user's cache folder."""
    folder = os.environ.get("LONGSPAN_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longspan"


@contextmanager
def replacing(path: Path | str, *, shared: bool = True) -> Iterator[Path]:
    """A temporary path beside `path`, which replaces `path` when the block ends without an error.

    >>> with replacing(Path("weights.safetensors")) as temporary:
    ...     save_file(tensors, temporary)

    With `shared`, several processes may replace the same file: each has its own temporary path. Without it there is
    one temporary path, so that the next write overwrites what a killed process left. On any error the temporary file is
    removed, and an operating-system error that names no file gets the name of `path`.

    The target of a symbolic link is replaced, not the link. What is no regular file (a device, a pipe) is written to
    directly.
    """
    path = Path(path)
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        with _naming(path):
            yield path
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part" if shared else f"{path.name}.part")
    try:
        temporary.open("wb").close()
        mode = temporary.stat().st_mode  # follows the umask
        _unfinished.add(temporary)
        yield temporary
        if temporary.stat().st_mode != mode:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        failed = os_error(error)
        if failed is None or failed.filename not in (None, str(temporary)):
            raise
        raise OSError(failed.errno, failed.strerror or str(failed), str(path)) from error
    finally:
        _unfinished.discard(temporary)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """An operating-system error that names no file gets the name of `path`."""
    try:
        yield
    except Exception as error:
        failed = os_error(error)
        if failed is None or failed.filename is not None:
            raise
        raise OSError(failed.errno, failed.strerror or str(failed), str(path)) from error


def write(path: Path | str, content: Callable[[IO[bytes]], object]) -> None:
    """Write a file with a function of the open file; the data is on disk before the file gets its name."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        content(file)
        file.flush()
        with suppress(OSError) if not temporary.is_file() else nullcontext():  # a pipe cannot be synchronised
            os.fsync(file.fileno())


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write a file, or leave the old one unchanged."""
    write(path, lambda file: file.write(content))


def write_text(path: Path | str, text: str) -> None:
    """Write a UTF-8 text file, or leave the old one unchanged."""
    write_bytes(path, text.encode("utf-8"))


def write_tensors(path: Path | str, tensors: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file."""
    from safetensors.torch import save_file  # imports torch, which other callers do not need

    with replacing(path, shared=False) as temporary:
        save_file(dict(tensors), temporary, metadata=metadata)


@contextmanager
def undone_on_error(path: Path | str) -> Iterator[None]:
    """If the block fails, remove the file or folder that it created at `path`, or what it added to the folder."""
    path = Path(path)
    roots = (path, path.with_name(f"{path.name}.part"))
    parents = [parent for parent in path.parents if not parent.exists()]
    before = {entry for root in roots if root.exists() for entry in (root, *root.rglob("*"))}
    try:
        yield
    except BaseException:
        for root in roots:
            for entry in sorted([root, *root.rglob("*")], reverse=True):  # contents before their folder
                if entry not in before and os.path.lexists(entry):
                    entry.rmdir() if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        for parent in parents:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        raise


def os_error(error: BaseException) -> OSError | None:
    """The operating-system error that an exception is, or that it reports in its text, as Rust libraries do."""
    if isinstance(error, OSError):
        # numpy reports a disk that became full only as "1000 requested and 12 written"
        short = error.errno is None and _SHORT.search(str(error))
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if short else error
    match = _OS_ERROR.search(str(error)) if isinstance(error, Exception) else None
    return None if match is None else OSError(int(match[1]), os.strerror(int(match[1])))


def remove_unfinished() -> None:
    """Remove the temporary files of unfinished writes, for a process that must exit at once."""
    for temporary in list(_unfinished):
        temporary.unlink(missing_ok=True)


__all__ = [
    "cache",
    "os_error",
    "remove_unfinished",
    "replacing",
    "undone_on_error",
    "write",
    "write_bytes",
    "write_tensors",
    "write_text",
]
