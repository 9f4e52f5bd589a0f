"""The tensors of a folder in safetensors files, one or several, mapped into memory and read when they are used."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from longspan.errors import InvalidInput

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


class Tensors(Mapping[str, Tensor]):
    """Their names and, on demand, themselves."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Path] = {}
        self._open: dict[Path, Any] = {}
        for path, listed in _files(folder).items():
            self._open[path] = _open(path)
            held = set(self._open[path].keys())
            for name in held if listed is None else listed:
                if name not in held:
                    raise InvalidInput(f"{path} lacks {name}, which {folder / INDEX} says it has")
                self.files[name] = path

    def __getitem__(self, name: str) -> Tensor:
        path = self.files[name]
        try:
            return self._open[path].get_tensor(name)
        except SafetensorError as error:
            raise InvalidInput(f"{path} cannot be read at {name}: {error}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """Each file with the tensors that it must have; None: whatever it has."""
    if (folder / INDEX).is_file():
        return {**shards(folder, INDEX)}
    if (folder / ONE).is_file():
        return {folder / ONE: None}
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        raise InvalidInput(
            f"{folder} has no {ONE}; {pickles[0]} is a pickle, which can run code and is not read here: "
            f"convert it once with `longspan convert {folder} NEW_FOLDER`"
        )
    raise InvalidInput(f"{folder} has no {ONE} and no {INDEX}")


def shards(folder: Path, index: str) -> dict[Path, list[str]]:
    """The files that an index lists, with the tensors that each must have."""
    try:
        listed = json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].items()
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{folder / index} lists no weights: {error!r}") from None
    found: dict[Path, list[str]] = {}
    for name, file in listed:
        if not isinstance(file, str) or Path(file).name != file:
            raise InvalidInput(f"{folder / index}: {name} must be in a file of this folder, not {file!r}")
        found.setdefault(folder / file, []).append(name)
    for path in found:
        if not path.is_file():
            raise InvalidInput(f"{folder} has no {path.name}, which {index} names")
    return found


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise InvalidInput(f"{path} is no whole safetensors file: {error}") from None


def write(folder: Path, tensors: Mapping[str, Tensor], *, shard_bytes: int = 5 * 10**9) -> None:
    """Writes one file or, over `shard_bytes`, several with an index; a file appears under its name when it is whole."""
    shards: list[dict[str, Tensor]] = [{}]
    size = total = 0
    for name, tensor in tensors.items():
        own = tensor.numel() * tensor.element_size()
        if shards[-1] and size + own > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.contiguous()
        size, total = size + own, total + own
    if len(shards) == 1:
        _write(folder / ONE, shards[0])
        (folder / INDEX).unlink(missing_ok=True)
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write(folder / file, shard)
        where.update(dict.fromkeys(shard, file))
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2) + "\n")
    (folder / ONE).unlink(missing_ok=True)


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    part = path.with_name(f"{path.name}.part")
    # Views of one storage are refused as ties; each is written by itself.
    seen: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone(memory_format=torch.contiguous_format) if place in seen else tensor
        seen.add(place)
    save_file(own, part, metadata={"format": "pt"})
    part.replace(path)


__all__ = ["INDEX", "ONE", "PICKLES", "Tensors", "shards", "write"]
