"""Files that longspan writes: with the mode that the umask gives, and with checksums that are checked on reading.

A folder may have a manifest: the size and the sha256 of its files. Checking reads every file once. What was read of
large files is remembered by size and times in the user's cache, so that a folder may be read-only and a large model
loads as fast as before.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from longspan.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
REMEMBERED = 1 << 22  # bytes; smaller files are read at every check


def cache() -> Path:
    """The folder of what longspan keeps for itself: LONGSPAN_CACHE, or the user's cache."""
    given = os.environ.get("LONGSPAN_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longspan"


def part_of(path: Path) -> Path:
    """A name beside a file, for no other process, to write it under until it is whole."""
    return path.with_name(f"{path.name}.{uuid4().hex}.part")


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file, which appears when it is whole; its mode is that of any new file.

    The package makes files that only their owner can read, whatever the umask.
    """
    from safetensors.torch import save_file  # with torch, which not everyone here needs

    part = path.with_name(f"{path.name}.part")  # what a killed process left is written over
    try:
        with part.open("wb"):
            mode = stat.S_IMODE(part.stat().st_mode)
        save_file(dict(tensors), part, metadata=metadata)
        part.chmod(mode)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


# Manifests


def facts(path: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Writes the checksums of these files of a folder."""
    record = {name: facts(folder / name) for name in sorted(names)}
    part = folder / f"{MANIFEST}.part"
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / MANIFEST)


def add_to_manifest(folder: Path, names: Iterable[str]) -> None:
    """The same for files that were added or changed, where the folder has a manifest."""
    if (folder / MANIFEST).is_file():
        known = {name for name in read_manifest(folder) if (folder / name).is_file()}
        write_manifest(folder, {*known, *names})


def read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and sha256 by the names of files; none where there is no manifest."""
    path = folder / MANIFEST
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from None
    try:
        return {str(name): (int(said["bytes"]), str(said["sha256"])) for name, said in listed.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InvalidInput(f"{path} is no list of files with their sizes and sums") from None


def check_manifest(folder: Path, *, optional: tuple[str, ...] = (), remember: bool = True) -> None:
    """Refuses a folder whose files are not those that were written; names that start like `optional` may be missing.

    Without `remember` every file is read.
    """
    for name, (size, digest) in read_manifest(folder).items():
        file = folder / name
        if not file.is_file():
            if optional and name.startswith(optional):
                continue
            raise InvalidInput(f"{file} is missing")
        if file.stat().st_size != size:
            raise InvalidInput(f"{file} has {file.stat().st_size} bytes, and {size} were written")
        if digest != (_digest(file) if remember and size >= REMEMBERED else facts(file)["sha256"]):
            raise InvalidInput(f"{file} was changed since it was written: its sha256 is another")


def _digest(file: Path) -> str:
    """The sha256 of a file, from the cache where the file is as it was."""
    seen = file.stat()
    state = [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]
    place = cache() / "checked" / f"{hashlib.sha256(os.fsencode(file.resolve())).hexdigest()}.json"
    try:
        known = json.loads(place.read_text(encoding="utf-8"))
        if known["state"] == state:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it is only a cache
    digest = str(facts(file)["sha256"])
    part = part_of(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"file": str(file.resolve()), "state": state, "sha256": digest}), encoding="utf-8")
        part.replace(place)
    except OSError:
        pass  # it is read again the next time
    return digest


__all__ = [
    "MANIFEST",
    "add_to_manifest",
    "cache",
    "check_manifest",
    "facts",
    "part_of",
    "read_manifest",
    "write_manifest",
    "write_tensors",
]
