"""Token files that `longspan data prepare --out` made, as training finds them again."""

import hashlib
from pathlib import Path

from longspan.data.tokenizer import Tokenizer
from longspan.data.tokenizer_files import read_tokenizer
from longspan.data.tokens import Slice, Tokens, open_tokens
from longspan.errors import InvalidInput

SPLITS = ("train", "held_out", "test")


def read_prepared(folder: Path, share: float) -> tuple[dict[str, Tokens], Tokenizer]:
    """The ids of each split, and the tokenizer they were made with.

    Where nothing was held out, the last `share` of the training ids is.
    """
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        raise InvalidInput(f"{folder} has no tokenizer; make it by `longspan data prepare NAME --out {folder}`")
    found = {split: open_tokens(folder / split) for split in SPLITS if (folder / f"{split}.json").is_file()}
    if "train" not in found:
        raise InvalidInput(f"{folder} has no token file train; make it by `longspan data prepare NAME --out {folder}`")
    for split, tokens in found.items():
        if tokens.made_with != fingerprint(tokenizer):
            raise InvalidInput(f"{folder / split} was not made with the tokenizer of {folder}; prepare it once more")
    if "held_out" not in found:
        whole = found["train"]
        cut = round(len(whole) * (1 - share))
        if not 0 < cut < len(whole):
            raise InvalidInput(f"{whole.path} has {len(whole)} ids, too few to hold some out")
        found["train"], found["held_out"] = Slice(whole, 0, cut), Slice(whole, cut, len(whole))
    return found, tokenizer


def fingerprint(tokenizer: Tokenizer) -> str:
    """What tells a tokenizer from others."""
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()


__all__ = ["fingerprint", "read_prepared"]
