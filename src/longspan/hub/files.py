"""A checkpoint of any of the formats that are read: a folder, a GGUF file, or a `.bin` of llama2.c."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from longspan.errors import InvalidInput, Unsupported
from longspan.hub import folder, gguf, llama2c
from longspan.hub.folder import Pretrained
from longspan.nn.heads import Head

FILES = {".gguf": gguf.load, ".bin": llama2c.load}


def load(
    path: Path | str,
    *,
    tasks: Sequence[Head | str] | None = None,
    dtype: torch.dtype | None = None,
    options: Mapping[str, Any] | None = None,
) -> Pretrained:
    """The model of a folder or file, in evaluation mode, its weights mapped from the file where that can be.

    `tasks` asks for other heads than the file's: those it lacks start untrained and are listed in `fresh`. `dtype` is
    that of the file unless given; GGUF files give float32. `options` of the model go before those that the
    configuration of a folder says.
    """
    path = Path(path)
    if path.is_dir():
        return folder.load(path, tasks=tasks, dtype=dtype, options=options)
    if not path.exists():
        raise InvalidInput(f"there is no {path}")
    if path.suffix not in FILES:
        raise Unsupported(f"{path} is no folder, and of files {' and '.join(FILES)} are read")
    if options is not None:
        raise Unsupported(f"options can be chosen for folders, and {path} is a file")
    return FILES[path.suffix](path, tasks=tasks, dtype=dtype)


__all__ = ["load"]
