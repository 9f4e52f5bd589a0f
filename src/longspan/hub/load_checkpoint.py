"""A checkpoint with all that belongs to it, from wherever it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from longspan.data import Tokenizer
from longspan.data.tokenizers.tokenizer import ROLES
from longspan.errors import InvalidInput, Unsupported
from longspan.hub import folder, sidecar_files
from longspan.hub.families.base import Asked
from longspan.hub.formats import gguf, llama2c
from longspan.hub.formats.gguf_file import GgufFile
from longspan.hub.formats.gguf_tokenizer import build
from longspan.hub.formats.gguf_vocabulary import CHAT, PREFIX
from longspan.hub.locate import NAMES, locate
from longspan.hub.pretrained import Pretrained
from longspan.parsing import refusing

FILES = {".gguf": gguf.load, ".bin": llama2c.load}
VOCABULARIES = ("tokenizer.bin", "tok*.bin")  # beside a file of llama2.c


def load(
    path: Path | str,
    *,
    tasks: Sequence[Asked] | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Pretrained:
    """The model of a folder or file, in evaluation mode, its weights mapped from the file where that can be.

    `path` is the folder of a model, of longspan or Hugging Face, the folder of a run, a .gguf file, a .bin of llama2.c,
    or `package:NAME` for the model inside an installed package.

    `tasks` asks for other heads than the file's: those it lacks start untrained and are listed in `fresh`. `dtype` is
    that of the file unless given; GGUF files give float32. Without `tokenizer` that is not looked at. `options` of the
    model go before those that the configuration of a folder says.
    """
    path = locate(path)
    if path.is_dir():
        found = folder.load(path, tasks=tasks, dtype=dtype, options=options)
    elif path.suffix not in FILES:
        raise Unsupported(f"{path} is no model: of files, {' and '.join(FILES)} are read; give {NAMES}")
    elif options is not None:
        raise Unsupported(f"options can be chosen for folders, and {path} is a file")
    else:
        found = FILES[path.suffix](path, tasks=tasks, dtype=dtype)
    found.path = path
    if path.is_dir():
        sidecar_files.read(found, path, tokenizer=tokenizer)
    elif tokenizer:
        with refusing(path, "has a tokenizer that cannot be read"):
            found.tokenizer = _of_file(found, path)
        sidecar_files.check_tokenizer(found, path)
    return found


def _of_file(found: Pretrained, path: Path) -> Tokenizer | None:
    """The tokenizer in a GGUF file, or beside one of llama2.c; the configuration says what its tokens are for."""
    record: dict[str, Any] = {}
    if path.suffix == ".gguf":
        held = GgufFile(path).metadata
        if f"{PREFIX}tokens" not in held:
            return None
        inner = build(held, path)
        if CHAT in held:
            if not isinstance(held[CHAT], str):
                raise InvalidInput(f"{path}: {CHAT} must be a text, not {held[CHAT]!r:.60}")
            record["chat_template"] = held[CHAT]
    else:
        beside = [file for pattern in VOCABULARIES for file in sorted(path.parent.glob(pattern)) if file != path]
        if not beside:
            return None
        inner = llama2c.tokenizer(beside[0])
    ids = {role: found.config.get(f"{role}_token_id") for role in ROLES}
    named = {role: inner.id_to_token(number) for role, number in ids.items() if isinstance(number, int)}
    return Tokenizer(inner, {role: token for role, token in named.items() if token is not None}, record)


__all__ = ["load"]
