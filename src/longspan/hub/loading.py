"""A checkpoint with all that belongs to it, from wherever it is."""

from collections.abc import Sequence
from pathlib import Path

import torch

from longspan.hub import around, folder
from longspan.hub.folder import Pretrained
from longspan.nn.heads import Head


def load(
    path: Path | str,
    *,
    tasks: Sequence[Head | str] | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: bool = True,
) -> Pretrained:
    """The model of a folder, in evaluation mode, its weights mapped from the file and not copied where that can be.

    `tasks` asks for other heads than the file's: those it lacks start untrained and are listed in `fresh`. `dtype` is
    that of the file unless given. Without `tokenizer` the folder's is not looked at.
    """
    found = folder.load(path, tasks=tasks, dtype=dtype)
    found.path = Path(path)
    around.read(found, found.path, tokenizer=tokenizer)
    return found


__all__ = ["load"]
