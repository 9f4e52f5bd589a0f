"""Hugging Face folders whose weights are pickles, from before safetensors.

A pickle is a program, and reading it runs the program. torch's `weights_only` reader knows only tensors, numbers and
plain containers, and refuses everything else before running it.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InvalidInput
from longspan.hub.formats.readers import CONFIG, Content, Format, read_config, vocabularies
from longspan.hub.formats.safetensors_files import PICKLES, shards

ONE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# Pickles of training that hold no weights.
OTHERS = ("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*")


def fits(path: Path) -> bool:
    """A folder with config.json and pickles, or one pickle with config.json beside it."""
    folder = path if path.is_dir() else path.parent
    return (folder / CONFIG).is_file() and (bool(_candidates(path)) or (folder / INDEX).is_file())


def read(path: Path) -> Content:
    """The folder's weights under their names, its configuration and its tokenizer's files."""
    folder = path if path.is_dir() else path.parent
    tensors: dict[str, Tensor] = {}
    if path.is_dir() and (folder / INDEX).is_file():
        for file, names in shards(folder, INDEX, ".bin").items():
            shard = weights(file)
            for name in names:
                if name not in shard:
                    raise InvalidInput(f"{file} lacks {name}, which {folder / INDEX} says it has")
                tensors[name] = shard[name]
    else:
        tensors = weights(_only(path))
    return Content(read_config(folder), tensors, vocabularies(folder))


def weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a pickle by their names; also those that training frameworks keep under `state_dict`."""
    tensors = unpickle(path)
    if isinstance(tensors, Mapping) and isinstance(tensors.get("state_dict"), Mapping):
        tensors = tensors["state_dict"]
    if not isinstance(tensors, Mapping) or not tensors:
        raise InvalidInput(f"{path} must hold tensors by their names, not {_kind(tensors)}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise InvalidInput(f"{path}: {name!r} must be a dense tensor with a name, not {_kind(tensor)}")
    return {name: tensor.detach() for name, tensor in tensors.items()}


def unpickle(path: Path) -> Any:
    """The content of a pickle of tensors, numbers and plain containers; no code in it runs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols: unknown ones are refused
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        requested = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"it asks for {requested[1]}" if requested else "it is more than weights, or broken"
        raise InvalidInput(f"{path} was not read: {what}, and of pickles only tensors are read") from None
    except Exception as error:  # a truncated pickle can raise anything
        lines = str(error).splitlines() or [type(error).__name__]
        raise InvalidInput(f"{path} is no whole file of weights: {lines[0]}") from None


def _candidates(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix in PICKLES else []
    if (path / ONE).is_file():
        return [path / ONE]
    files = sorted(file for file in path.iterdir() if file.suffix in PICKLES and file.is_file())
    return [file for file in files if not any(fnmatch(file.name, other) for other in OTHERS)]


def _only(path: Path) -> Path:
    candidates = _candidates(path)
    if len(candidates) > 1:
        raise InvalidInput(f"{path} has {', '.join(file.name for file in candidates)}; give the one that is wanted")
    return candidates[0]


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of layout {value.layout}"
    return "an empty one" if isinstance(value, Mapping) and not value else f"a {type(value).__name__}"


PICKLE = Format("a folder with config.json and pytorch_model.bin (or another pickle of weights)", fits, read)

__all__ = ["PICKLE", "unpickle", "weights"]
