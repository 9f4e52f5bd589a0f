"""Checkpoints: folders that are whole or not there.

A checkpoint is written beside its place, flushed to the disk and renamed; its manifest holds the size and sha256 of
every file. Whatever is cut short, changed or unreadable is told apart from a whole one before anything is read.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from longspan import files
from longspan.errors import InvalidInput
from longspan.hub.locate import check_checkpoint as check
from longspan.hub.locate import checkpoints as every
from longspan.hub.locate import newest_checkpoint as newest
from longspan.manifest import write_manifest
from longspan.parsing import check_safetensors, refusing

PART = ".part"
RANDOM, CARRIED = "random", "carried"


@contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """A folder to write into, which takes its name when all of it is on the disk."""
    part = folder.with_name(folder.name + PART)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        write_manifest(part, [path.relative_to(part).as_posix() for path in part.rglob("*") if path.is_file()])
        for path in (*part.rglob("*"), part):
            _flush(path)
        part.rename(folder)
        _flush(folder.parent)
    except (OSError, SafetensorError) as error:  # safetensors says a full disk in its own way
        shutil.rmtree(part, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        rest = (
            "those before it are whole. Make room and resume the run, or copy its folder elsewhere and resume it there"
            if every(folder.parent)
            else "it is the first of the run. Make room and start the run again"
        )
        raise InvalidInput(f"the checkpoint {folder} could not be written: {reason}; {rest}") from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def clear(folder: Path) -> None:
    """Removes what was left unfinished."""
    for path in folder.glob(f"*{PART}"):
        shutil.rmtree(path, ignore_errors=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A file of tensors, each by itself."""
    files.write_tensors(path, {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})


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
