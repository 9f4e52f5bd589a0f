"""Convert other formats (pickles, fairseq) to a folder that `load` reads: safetensors, config.json, tokenizer files.

Only `convert` does this, never `load`. To add a format: a file with a `Format`, and its line here.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from longspan.errors import InvalidInput
from longspan.hub.formats import safetensors_files
from longspan.parsing import read_json_table

CONFIG = "config.json"
# Files of Hugging Face's tokenizers.
VOCABULARIES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "bpe.codes",
    "dict.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True)
class Content:
    """The content of a source, ready to be written."""

    config: Mapping[str, Any]  # of Hugging Face's, with `model_type`
    tensors: Mapping[str, Tensor]  # under Hugging Face's names; each is asked for once
    copies: Sequence[Path] = ()  # files that are copied
    texts: Mapping[str, str] = field(default_factory=dict)  # new files, by name


@dataclass(frozen=True)
class Format:
    """A format that can be converted."""

    about: str  # what is expected, for errors: "a folder with …"
    fits: Callable[[Path], bool]  # whether a path has this format, by names and first bytes only
    read: Callable[[Path], Content]


FORMATS: dict[str, str] = {
    "pickle": "longspan.hub.formats.pickles:PICKLE",
    "fairseq": "longspan.hub.formats.fairseq:FAIRSEQ",
}


def convert(source: Path | str, target: Path | str) -> list[Path]:
    """Converts `source` to the new folder `target`, which appears when it is complete; returns its files."""
    source, target = Path(source), Path(target)
    if not source.exists():
        raise InvalidInput(f"{source} does not exist")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InvalidInput(f"{target} exists already; give the name of a new folder")
    content = find(source).read(source)
    unfinished = target.with_name(f"{target.name}.part")
    try:
        unfinished.mkdir(parents=True)
    except FileExistsError:
        raise InvalidInput(f"{unfinished} is left over from an interrupted conversion; remove it") from None
    try:
        _write(content, unfinished)
        if target.is_dir():
            target.rmdir()
        unfinished.replace(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return sorted(target.iterdir())


def reads(source: Path) -> bool:
    """Whether a source has one of these formats."""
    if source.is_dir() and any((source / name).is_file() for name in (safetensors_files.ONE, safetensors_files.INDEX)):
        return False
    return source.exists() and any(_load(target).fits(source) for target in FORMATS.values())


def find(source: Path) -> Format:
    """The format of a source."""
    if source.is_dir() and any((source / name).is_file() for name in (safetensors_files.ONE, safetensors_files.INDEX)):
        raise InvalidInput(f"{source} has its weights in safetensors already; load it as it is")
    known = []
    for target in FORMATS.values():
        format = _load(target)
        if format.fits(source):
            return format
        known.append(format.about)
    raise InvalidInput(f"{source} is nothing that can be converted; expected {', or '.join(known)}")


def _load(target: str) -> Format:
    module, _, attribute = target.partition(":")
    format = getattr(import_module(module), attribute)
    assert isinstance(format, Format)
    return format


def vocabularies(folder: Path) -> list[Path]:
    """The tokenizer's files of a folder."""
    return [folder / name for name in VOCABULARIES if (folder / name).is_file()]


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a folder of Hugging Face's."""
    return read_json_table(folder / CONFIG)


def _write(content: Content, folder: Path) -> None:
    (folder / CONFIG).write_text(json.dumps(content.config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for path in content.copies:
        shutil.copyfile(path, folder / path.name)
    for name, text in content.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    safetensors_files.write(folder, content.tensors)


__all__ = ["FORMATS", "Content", "Format", "convert", "find", "read_config", "reads", "vocabularies"]
