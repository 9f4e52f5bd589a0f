"""From one kind of checkpoint to another: read by `load`, written by the kind's own writer."""

from pathlib import Path

import torch

from longspan.errors import InvalidInput, InvalidOption, UnknownName, suggest
from longspan.hub import around
from longspan.hub.folder import CONFIG, Pretrained, save
from longspan.hub.loading import load

KINDS = ("huggingface", "longspan")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def convert(
    source: Path | str,
    target: Path | str,
    *,
    to: str = "huggingface",
    dtype: str | None = None,
    shard_size: int | str = "5GB",
    overwrite: bool = False,
) -> Pretrained:
    """Reads a checkpoint and writes it as another kind, tokenizer and all; gives back what was read.

    >>> convert("old-bert", "new-bert", dtype="bfloat16")
    """
    source, target = Path(source), Path(target)
    if to not in KINDS:
        raise UnknownName(f"no kind of checkpoint is called {to!r}: {suggest(to, KINDS)}")
    if dtype is not None and dtype not in DTYPES:
        raise UnknownName(f"dtype cannot be {dtype!r}: {suggest(dtype, DTYPES)}")
    size = read_size(shard_size)
    if target.exists() and not target.is_dir():
        raise InvalidInput(f"{target} is a file; give a folder to write to")
    if target.resolve() == source.resolve():
        raise InvalidInput(f"{target} is the source itself; give another folder to write to")
    if (target / CONFIG).is_file() and not overwrite:
        raise InvalidInput(f"{target} already has a model; give another folder, or overwrite it (overwrite)")
    found = load(source, dtype=None if dtype is None else DTYPES[dtype])
    if to == "huggingface":
        save(found, target, shard_bytes=size)
    else:
        target.mkdir(parents=True, exist_ok=True)
        around.write(found, target)
        found.model.save(target)
    return found


def read_size(size: int | str) -> int:
    """Bytes, from a number or a text such as 500MB or 2GiB."""
    if isinstance(size, str):
        number = size.strip().rstrip("abgikmABGIKM ")
        unit = size.strip()[len(number) :].strip().upper() or "B"
        try:
            size = int(float(number) * UNITS[unit])
        except (ValueError, KeyError, OverflowError):
            raise InvalidOption(f"a size is a number with a unit, such as 500MB or 5GB, not {size!r}") from None
    if size < 1:
        raise InvalidOption(f"a size must be at least one byte, not {size}")
    return size


__all__ = ["DTYPES", "KINDS", "convert", "read_size"]
