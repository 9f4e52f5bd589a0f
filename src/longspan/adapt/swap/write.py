"""Write a swapped model: a folder of longspan's with `swap.json`, complete or not there."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from longspan.errors import InvalidInput
from longspan.hub import Pretrained, sidecar_files
from longspan.manifest import add_to_manifest

RECORD = "swap.json"


def check_target(folder: Path) -> None:
    """Refuses a folder that is there already, and one that cannot be made."""
    if os.path.lexists(folder):
        raise InvalidInput(f"{folder} exists already; give the name of a new folder")
    parent = next(path for path in folder.resolve().parents if path.exists())
    try:  # permissions do not tell: root may write anywhere, and still not below /proc
        Path(tempfile.mkdtemp(prefix=".longspan-", dir=parent)).rmdir()
    except OSError:
        raise InvalidInput(f"{folder} cannot be written: {parent} is no folder that you may write to") from None


def write_swap(
    pretrained: Pretrained,
    record: Mapping[str, Any],
    folder: Path,
    beside: Callable[[Path], None] | None = None,
) -> None:
    """Writes the model, its tokenizer and `swap.json` under another name, and renames the folder when all is on disk.

    `beside` writes further files, such as a report.
    """
    check_target(folder)
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    part.mkdir(parents=True)
    try:
        pretrained.model.save(part)
        sidecar_files.write(pretrained, part)
        (part / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        add_to_manifest(part, [RECORD])
        if beside is not None:
            beside(part)
        for path in (*part.rglob("*"), part):
            _flush(path)
        check_target(folder)
        part.rename(folder)
        _flush(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"{folder} could not be written: {reason}") from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _flush(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


__all__ = ["RECORD", "check_target", "write_swap"]
