"""Write a quantised model as a folder that `longspan.load` reads."""

import shutil
from pathlib import Path

from longspan.errors import InvalidInput
from longspan.hub import sidecar_files
from longspan.hub.pretrained import Pretrained


def check_target(out: Path) -> None:
    """Refuses a folder that cannot be written, before any work."""
    if out.exists():
        raise InvalidInput(f"{out} exists already; give another name with --out, or remove it")
    if not out.resolve().parent.is_dir():
        raise InvalidInput(f"{out} cannot be written: there is no folder {out.resolve().parent}")


def write(pretrained: Pretrained, out: Path) -> None:
    """Writes the model with its tokenizer and settings; the folder appears complete or not at all."""
    check_target(out)
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        pretrained.model.save(part)
        sidecar_files.write(pretrained, part)
        part.rename(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def folder_bytes(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


__all__ = ["check_target", "folder_bytes", "write"]
