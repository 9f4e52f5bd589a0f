"""Files beside a model's configuration and weights: tokenizer, generation settings, sentence pooling."""

import json
from pathlib import Path
from typing import Any

from longspan.data import Tokenizer, read_tokenizer
from longspan.data.files import read_json
from longspan.data.tokenizers.tokenizer import ROLES
from longspan.errors import InvalidInput
from longspan.hub.formats import llama2c
from longspan.hub.formats.gguf_file import GgufFile
from longspan.hub.formats.gguf_tokenizer import build
from longspan.hub.formats.gguf_vocabulary import CHAT, PREFIX
from longspan.hub.pretrained import Pretrained
from longspan.hub.sentence_pooling import read_sentence
from longspan.parsing import refusing

GENERATION = "generation_config.json"
LLAMA2C_TOKENIZERS = ("tokenizer.bin", "tok*.bin")  # beside a model file of llama2.c


def attach(pretrained: Pretrained, path: Path, *, tokenizer: bool = True) -> None:
    """Adds the tokenizer and settings found in a model's folder, in its GGUF file, or beside its llama2.c file."""
    if path.is_dir():
        pretrained.generation = read_json(path / GENERATION)
        pretrained.sentence = read_sentence(path)
    if not tokenizer:
        return
    if path.is_dir():
        pretrained.tokenizer = read_tokenizer(path)
    else:
        with refusing(path, "has a tokenizer that cannot be read"):
            pretrained.tokenizer = _file_tokenizer(pretrained.config, path)
    _check_tokenizer(pretrained, path)


def write(pretrained: Pretrained, folder: Path, tokenizer: Tokenizer | None = None) -> None:
    """Writes the files to a folder; `tokenizer` replaces the model's own."""
    chosen = tokenizer or pretrained.tokenizer
    if chosen is not None:
        chosen.save(folder)
    if pretrained.generation:
        text = json.dumps(pretrained.generation, indent=2, ensure_ascii=False)
        (folder / GENERATION).write_text(text + "\n", encoding="utf-8")
    if pretrained.sentence is not None:
        pretrained.sentence.save(folder)


def _file_tokenizer(config: dict[str, Any], path: Path) -> Tokenizer | None:
    """The tokenizer of a model file; the ids of its special tokens are in the configuration."""
    record: dict[str, Any] = {}
    if path.suffix == ".gguf":
        metadata = GgufFile(path).metadata
        if f"{PREFIX}tokens" not in metadata:
            return None
        inner = build(metadata, path)
        if CHAT in metadata:
            if not isinstance(metadata[CHAT], str):
                raise InvalidInput(f"{path}: {CHAT} must be a text, not {metadata[CHAT]!r:.60}")
            record["chat_template"] = metadata[CHAT]
    else:
        beside = [file for pattern in LLAMA2C_TOKENIZERS for file in sorted(path.parent.glob(pattern)) if file != path]
        if not beside:
            return None
        inner = llama2c.tokenizer(beside[0])
    ids = {role: config.get(f"{role}_token_id") for role in ROLES}
    tokens = {role: inner.id_to_token(number) for role, number in ids.items() if isinstance(number, int)}
    return Tokenizer(inner, {role: token for role, token in tokens.items() if token is not None}, record)


def _check_tokenizer(pretrained: Pretrained, path: Path) -> None:
    """Refuses a tokenizer with ids for which the model has no embedding."""
    rows = pretrained.model.token_rows
    if pretrained.tokenizer is not None and rows is not None and pretrained.tokenizer.size > rows:
        raise InvalidInput(
            f"{path}: the tokenizer has {pretrained.tokenizer.size} tokens and the model {rows} rows for them; "
            "was it made for this model?"
        )


__all__ = ["GENERATION", "attach", "write"]
