"""Checksums of a folder's files, written with the folder and checked when it is read.

A manifest lists the size and the sha256 of files. Checking reads every file. The checksum of a large file is cached in
the user's cache folder, keyed by its size and times: the model folder may be read-only, and a large model loads fast.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from longspan import files
from longspan.errors import InvalidInput
from longspan.parsing import read_json

MANIFEST = "manifest.json"
REMEMBERED = 1 << 22  # bytes; checksums of smaller files are not cached


def facts(path: Path) -> dict[str, Any]:
    """The manifest entry of a file: its size and sha256."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Write a manifest of these files of a folder."""
    record = {name: facts(folder / name) for name in sorted(names)}
    files.write_text(folder / MANIFEST, json.dumps(record, indent=1) + "\n")


def add_to_manifest(folder: Path, names: Iterable[str]) -> None:
    """Add files that are new or changed to the manifest, if the folder has one."""
    if (folder / MANIFEST).is_file():
        known = {name for name in read_manifest(folder) if (folder / name).is_file()}
        write_manifest(folder, {*known, *names})


def read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and sha256 by file name; empty if there is no manifest."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    listed = read_json(path)
    try:
        known = {str(name): (int(facts["bytes"]), str(facts["sha256"])) for name, facts in listed.items()}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{path} is not a list of files with sizes and checksums") from None
    for name in known:
        if "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts or len(name) > 255:
            raise InvalidInput(f"{path} lists a file that is not in its folder: {name[:80]!r}")
    return known


def check_manifest(folder: Path, *, optional: tuple[str, ...] = (), remember: bool = True) -> None:
    """Refuse a folder whose files differ from its manifest; files with an `optional` prefix may be missing.

    Without `remember`, cached checksums are not used.
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
            raise InvalidInput(f"{file} was changed since it was written: its sha256 differs")


def _digest(file: Path) -> str:
    """The sha256 of a file, from the cache if the file has not changed."""
    status = file.stat()
    state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    cached = files.cache() / "checked" / f"{hashlib.sha256(os.fsencode(file.resolve())).hexdigest()}.json"
    try:
        known = json.loads(cached.read_text(encoding="utf-8"))
        if known["state"] == state:
            return str(known["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it is only a cache
    digest = str(facts(file)["sha256"])
    with suppress(OSError):  # without a cache the file is read again next time
        cached.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(cached, json.dumps({"file": str(file.resolve()), "state": state, "sha256": digest}))
    return digest


__all__ = [
    "MANIFEST",
    "add_to_manifest",
    "check_manifest",
    "facts",
    "read_manifest",
    "write_manifest",
]
