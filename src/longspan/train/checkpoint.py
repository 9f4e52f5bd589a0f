"""Checkpoints: folders that are whole or not there.

A checkpoint is written beside its place, flushed to the disk and renamed; its manifest holds the size and sha256 of
every file. Whatever is cut short, changed or unreadable is told apart from a whole one before anything is read.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from longspan.errors import InvalidInput
from longspan.parsing import check_safetensors, read_json, refusing

MANIFEST, PART = "manifest.json", ".part"
RANDOM, CARRIED = "random", "carried"
EXACT = (f"{RANDOM}-", f"{CARRIED}-")  # files of each process, without which a run goes on, but not as it would have


@contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """A folder to write into, which takes its name when all of it is on the disk."""
    part = folder.with_name(folder.name + PART)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        sums = {path.relative_to(part).as_posix(): _facts(path) for path in sorted(part.rglob("*")) if path.is_file()}
        (part / MANIFEST).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")
        for path in (*part.rglob("*"), part):
            _flush(path)
        part.rename(folder)
        _flush(folder.parent)
    except (OSError, SafetensorError) as error:  # safetensors says a full disk in its own way
        shutil.rmtree(part, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(
            f"the checkpoint {folder} could not be written: {reason}; those before it are whole. Make room and resume "
            "the run, or copy its folder elsewhere and resume it there"
        ) from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def check(folder: Path) -> None:
    """Refuses a checkpoint whose files are not those that were written.

    One that lacks only what exactness needs is whole: whoever goes on from it says whether that may be missing.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise InvalidInput(f"{folder} is no whole checkpoint: it has no {MANIFEST}")
    listed = read_json(path)
    try:
        known = {str(name): (int(facts["bytes"]), str(facts["sha256"])) for name, facts in listed.items()}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{path} is no list of files with their sizes and sums") from None
    for name in known:
        if "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts or len(name) > 255:
            raise InvalidInput(f"{path} lists a file that is not in the checkpoint: {name[:80]!r}")
    for name, (size, digest) in known.items():
        file = folder / name
        if not file.is_file():
            if name.startswith(EXACT):
                continue
            raise InvalidInput(f"{file} is missing")
        if file.stat().st_size != size:
            raise InvalidInput(f"{file} has {file.stat().st_size} bytes, and {size} were written")
        if _facts(file)["sha256"] != digest:
            raise InvalidInput(f"{file} was changed since it was written: its sha256 is another")


def every(folder: Path) -> list[Path]:
    """The checkpoints of a run, newest first; unfinished ones are not among them."""
    found = [path for path in folder.glob("*") if path.is_dir() and path.name.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def clear(folder: Path) -> None:
    """Removes what was left unfinished."""
    for path in folder.glob(f"*{PART}"):
        shutil.rmtree(path, ignore_errors=True)


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and what was wrong with those after it."""
    wrong = []
    for path in every(folder):
        try:
            check(path)
        except InvalidInput as error:
            wrong.append(str(error))
            continue
        return path, wrong
    return None, wrong


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A file of tensors, each by itself."""
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name."""
    try:
        check_safetensors(path)
        return load_file(path)
    except (SafetensorError, OSError, InvalidInput) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None


# What an optimiser remembers, by the names of the parameters


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """Under `<parameter>/<what>`; `names` are those of the parameters by their id."""
    return {
        f"{names[id(parameter)]}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for parameter, held in optimizer.state.items()
        for key, value in held.items()
    }


# Randomness


def random_state() -> dict[str, Tensor]:
    """The state of torch's generators in this process."""
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def restore_random_state(tensors: Mapping[str, Tensor]) -> None:
    """Goes on where `random_state` was taken."""
    with refusing("the checkpoint's state of random numbers"):
        torch.set_rng_state(tensors["cpu"])
        if "cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["cuda"])


def _facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


__all__ = [
    "check",
    "clear",
    "every",
    "newest",
    "optimizer_tensors",
    "random_state",
    "read_tensors",
    "restore_random_state",
    "write_tensors",
    "writing",
]
