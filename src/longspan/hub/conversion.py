"""Convert a checkpoint from one format to another."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from longspan.errors import InvalidInput, InvalidOption, UnknownName, Unsupported, suggest
from longspan.hub import sidecar_files
from longspan.hub.formats import gguf, readers
from longspan.hub.formats.gguf_vocabulary import metadata
from longspan.hub.lift import lift_to_etc
from longspan.hub.load_checkpoint import load
from longspan.hub.locate import locate
from longspan.hub.pretrained import Pretrained
from longspan.hub.save_checkpoint import save
from longspan.models.folder import CONFIG

KINDS = ("huggingface", "longspan", "gguf", "etc")
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
    """Read a checkpoint and write it in another format, with its tokenizer; returns what was read.

    Only this function reads pickles, and only those that hold tensors and no code. A GGUF file is float32 unless
    `dtype` is float16; the other formats are folders, in the precision of the source. `to="etc"` turns an encoder such
    as BERT into an ETC, in a folder of longspan's (see `lift`).

    >>> convert("old-bert", "new-bert", dtype="bfloat16")
    """
    source, target = locate(source), Path(target)
    if to not in KINDS:
        raise UnknownName(f"no kind of checkpoint is called {to!r}: {suggest(to, KINDS)}")
    if dtype is not None and dtype not in DTYPES:
        raise UnknownName(f"dtype cannot be {dtype!r}: {suggest(dtype, DTYPES)}")
    size = read_size(shard_size)
    _check_target(source, target, to, overwrite)
    with TemporaryDirectory() as temporary:
        if readers.reads(source):
            readers.convert(source, Path(temporary) / "model")
            source = Path(temporary) / "model"
        pretrained = load(source, dtype=None if dtype is None else DTYPES[dtype])
        if to == "huggingface":
            save(pretrained, target, shard_bytes=size)
        elif to in ("longspan", "etc"):
            if to == "etc":
                pretrained = lift_to_etc(pretrained)
            target.mkdir(parents=True, exist_ok=True)
            pretrained.model.save(target)
            sidecar_files.write(pretrained, target)
        else:
            _write_gguf(pretrained, target, dtype)
    return pretrained


def _check_target(source: Path, target: Path, to: str, overwrite: bool) -> None:
    if target.resolve() == source.resolve():
        raise InvalidInput(f"{target} is the source itself; give another name to write to")
    if to == "gguf":
        if target.suffix != ".gguf" or target.is_dir():
            raise InvalidInput(f"{target} must be the name of a file that ends in .gguf")
        if not target.resolve().parent.is_dir():
            raise InvalidInput(f"{target} cannot be written: there is no folder {target.resolve().parent}")
    elif target.exists() and not target.is_dir():
        raise InvalidInput(f"{target} is a file; give a folder to write to")
    there = target if to == "gguf" else target / CONFIG
    if there.exists() and not overwrite:
        raise InvalidInput(f"{target} exists already; give another name, or overwrite it (--overwrite)")


def _write_gguf(pretrained: Pretrained, target: Path, dtype: str | None) -> None:
    if dtype not in (None, "float16", "float32"):
        raise Unsupported(f"a GGUF file is written in float32 or float16 here, not in {dtype}")
    rows = pretrained.model.options.vocabulary
    vocabulary = None if pretrained.tokenizer is None else metadata(pretrained.tokenizer, rows)
    gguf.write(pretrained, target, half=dtype == "float16", tokenizer=vocabulary)


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
