"""Read and write the folder of tokens that `longspan data prepare --out` makes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longspan import files
from longspan.data.files import read_json
from longspan.data.text.token_files import Slice, Tokens, open_tokens
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.data.tokenizers.tokenizer_files import read_tokenizer
from longspan.errors import InvalidInput
from longspan.parsing import refusing

SIZES = "sizes.json"
SPLITS = ("train", "held_out", "test")


@dataclass
class Sizes:
    """The size of a text before tokenisation: the denominators of metrics per byte and per word."""

    bytes: int = 0
    words: int = 0  # with line ends, as WikiText counts

    def add(self, piece: str) -> None:
        self.bytes += len(piece.encode())
        self.words += len(piece.split()) + piece.count("\n")


def write_sizes(folder: Path, sizes: Mapping[str, Sizes]) -> None:
    text = json.dumps({split: asdict(each) for split, each in sizes.items()}, indent=1)
    files.write_text(folder / SIZES, text + "\n")


def read_prepared(folder: Path, share: float) -> tuple[dict[str, Tokens], dict[str, Sizes], Tokenizer]:
    """The ids of each split, the size of each text (if known), and the tokenizer.

    If nothing was held out, the last `share` of the training ids is.
    """
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        raise InvalidInput(f"{folder} has no tokenizer; make it by `longspan data prepare NAME --out {folder}`")
    found = {split: open_tokens(folder / split) for split in SPLITS if (folder / f"{split}.json").is_file()}
    if "train" not in found:
        raise InvalidInput(f"{folder} has no token file train; make it by `longspan data prepare NAME --out {folder}`")
    for split, tokens in found.items():
        if tokens.made_with != fingerprint(tokenizer):
            raise InvalidInput(f"{folder / split} was not made with the tokenizer of {folder}; prepare it again")
    with refusing(folder / SIZES):
        sizes = {split: Sizes(**each) for split, each in read_json(folder / SIZES).items()}
        counts: list[Any] = [count for each in sizes.values() for count in (each.bytes, each.words)]
        if not all(isinstance(count, int) for count in counts):
            raise InvalidInput(f"{folder / SIZES} must have numbers of bytes and words")
    if "held_out" not in found:
        sizes = {}  # the split is by tokens, so sizes of texts are unknown
        whole = found["train"]
        cut = round(len(whole) * (1 - share))
        if not 0 < cut < len(whole):
            raise InvalidInput(f"{whole.path} has {len(whole)} ids, too few to hold some out")
        found["train"], found["held_out"] = Slice(whole, 0, cut), Slice(whole, cut, len(whole))
    return found, sizes, tokenizer


def fingerprint(tokenizer: Tokenizer) -> str:
    """A hash that identifies a tokenizer."""
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


__all__ = ["Sizes", "fingerprint", "read_prepared", "write_sizes"]
