"""Atomic checkpoint folders.

A checkpoint is written under another name, flushed to disk and then renamed. Its manifest has the size and sha256 of
every file, so that a truncated or changed checkpoint is detected before it is read.
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
    """A temporary folder to write into, renamed to `folder` when all of it is on disk."""
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
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk by its own exception
        shutil.rmtree(part, ignore_errors=True)
        reason = getattr(error, "strerror", None) or str(error)
        rest = (
            "earlier ones are complete. Make room and resume the run, or copy its folder elsewhere and resume it there"
            if every(folder.parent)
            else "it is the first of the run. Make room and start the run again"
        )
        raise InvalidInput(f"the checkpoint {folder} could not be written: {reason}; {rest}") from error
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def clear(folder: Path) -> None:
    """Remove unfinished checkpoints."""
    for path in folder.glob(f"*{PART}"):
        shutil.rmtree(path, ignore_errors=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a file; tensors that share memory are written separately."""
    files.write_tensors(path, {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file, by name."""
    try:
        check_safetensors(path)
        return load_file(path)
    except (SafetensorError, OSError, InvalidInput) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None


# State of the optimizer


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """The optimizer's state by `<parameter>/<key>`; `names` maps the parameters' ids to their names."""
    return {
        f"{names[id(parameter)]}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


# Random number generators


def random_state() -> dict[str, Tensor]:
    """The state of torch's generators in this process."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_state(tensors: Mapping[str, Tensor]) -> None:
    """Set the generators to a state of `random_state`."""
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
