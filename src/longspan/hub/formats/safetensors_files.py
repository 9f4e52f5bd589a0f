"""Safetensors files of a folder, one or several shards, mapped into memory and read when used."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from longspan import files
from longspan.errors import InvalidInput
from longspan.parsing import check_safetensors, parse_json, read_json, refusing

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "BOOL": torch.bool,
}
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


class Tensors(Mapping[str, Tensor]):
    """The tensors of a folder by name, read on demand."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, Path] = {}
        self._open: dict[Path, _File] = {}
        for path, listed in _files(folder).items():
            self._open[path] = _File(path)
            header = self._open[path].header
            for name in header if listed is None else listed:
                if name not in header:
                    raise InvalidInput(f"{path} lacks {name}, which {folder / INDEX} says it has")
                self.files[name] = path

    def __getitem__(self, name: str) -> Tensor:
        return self._open[self.files[name]].tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """Each file with the tensors that it must have; None: all that it has."""
    if (folder / INDEX).is_file():
        return {**shards(folder, INDEX, ".safetensors")}
    if (folder / ONE).is_file():
        return {folder / ONE: None}
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        raise InvalidInput(
            f"{folder} has no {ONE}; {pickles[0]} is a pickle, which can run code and is not read here: "
            f"convert it once with `longspan convert {folder} NEW_FOLDER`"
        )
    raise InvalidInput(f"{folder} has no {ONE} and no {INDEX}")


def shards(folder: Path, index: str, suffix: str, *, present: bool = True) -> dict[Path, list[str]]:
    """The files that an index lists, with the tensors that each must have; `present`: all must be there."""
    try:
        read = read_json(folder / index)
    except InvalidInput as error:
        raise InvalidInput(f"{folder / index} lists no weights: {error}") from None
    listed = read.get("weight_map") if isinstance(read, dict) else None
    if not listed or not isinstance(listed, dict):
        raise InvalidInput(f"{folder / index} lists no weights: it has no weight_map from names to files")
    files_listed: dict[Path, list[str]] = {}
    for name, file in listed.items():
        if not isinstance(file, str) or Path(file).name != file or Path(file).suffix != suffix:
            raise InvalidInput(f"{folder / index}: {name} must be in a {suffix} file beside it, not {file!r}")
        files_listed.setdefault(folder / file, []).append(name)
    for path in files_listed if present else ():
        if not path.is_file():
            raise InvalidInput(f"{folder} has no {path.name}, which {index} names")
    return files_listed


class _File:
    """One file as one block of memory, so that adjacent tensors can be joined without a copy.

    The package checks that the file is whole, but gives each tensor its own memory.
    """

    def __init__(self, path: Path) -> None:
        check_safetensors(path)
        try:
            self._checked = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise InvalidInput(f"{path} is no whole safetensors file: {error}") from None
        self.path = path
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            self.header: dict[str, Any] = parse_json(file.read(size), f"{path}: its header")
        self.header.pop("__metadata__", None)
        self._first = 8 + size
        self._bytes = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)

    def tensor(self, name: str) -> Tensor:
        entry = self.header[name]
        kind = KINDS.get(entry["dtype"])
        start, stop = (self._first + offset for offset in entry["data_offsets"])
        if kind is not None and start % kind.itemsize == 0:
            with refusing(self.path, f"has {name} in another size than it says"):
                return self._bytes[start:stop].view(kind).view(entry["shape"])
        try:
            tensor: Tensor = cast(Any, self._checked).get_tensor(name)
        except SafetensorError as error:
            raise InvalidInput(f"{self.path} cannot be read at {name}: {error}") from None
        return tensor


def write(folder: Path, tensors: Mapping[str, Tensor], *, shard_bytes: int = 5 * 10**9) -> None:
    """Writes one file or, above `shard_bytes`, several with an index; a file gets its name when it is complete."""
    shards: list[dict[str, Tensor]] = [{}]
    size = total = 0
    for name, tensor in tensors.items():
        nbytes = tensor.numel() * tensor.element_size()
        if shards[-1] and size + nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor.contiguous()
        size, total = size + nbytes, total + nbytes
    before = {path for path in folder.glob("model-*-of-*.safetensors") if SHARD.fullmatch(path.name)}
    if len(shards) == 1:
        _write(folder / ONE, shards[0])
        (folder / INDEX).unlink(missing_ok=True)
        _remove(before)
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write(folder / file, shard)
        where.update(dict.fromkeys(shard, file))
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2) + "\n")
    _remove({folder / ONE, *before} - {folder / file for file in where.values()})


def _remove(paths: Iterable[Path]) -> None:
    """Removes files of an earlier model."""
    for path in paths:
        path.unlink(missing_ok=True)


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    # The package refuses tensors that share memory, so ties are copied. Tensors of one mapped file do not overlap.
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        address = tensor.data_ptr()
        separate[name] = tensor.clone(memory_format=torch.contiguous_format) if address in seen else tensor
        seen.add(address)
    files.write_tensors(path, separate, {"format": "pt"})


__all__ = ["INDEX", "ONE", "PICKLES", "Tensors", "shards", "write"]
