"""Training texts: a file as blocks of tokens, the last ones held out."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from longspan.data import Tokenizer
from longspan.data.text import text_files
from longspan.errors import InvalidInput


class Texts:
    """Blocks of `length` tokens of a file. The order of the training blocks follows from the seed and the step alone,
    so that a resumed run reads what the first one would have read."""

    def __init__(
        self, path: Path, tokenizer: Tokenizer, *, length: int, held_out: int, documents: bool = False, seed: int = 0
    ) -> None:
        ids = _encode(path, tokenizer, documents)
        count = len(ids) // length
        least = held_out + 1
        if count < least:
            raise InvalidInput(
                f"{path} has {len(ids)} tokens: {count} texts of {length}; healing needs {least}, of which {held_out} "
                "are held out; give more text, a smaller length or fewer held-out texts"
            )
        blocks = ids[: count * length].view(count, length)
        self.train, self.held_out = blocks[:-held_out], blocks[-held_out:]
        self.length, self.seed = length, seed
        self.fingerprint = hashlib.sha256(ids.numpy().tobytes()).hexdigest()

    def batch(self, step: int, size: int) -> Tensor:
        """The texts of a step, (size, length)."""
        rows, orders = [], {}
        for number in range(step * size, (step + 1) * size):
            epoch, place = divmod(number, len(self.train))
            if epoch not in orders:
                drawn = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                orders[epoch] = torch.randperm(len(self.train), generator=drawn)
            rows.append(self.train[orders[epoch][place]])
        return torch.stack(rows)


def _encode(path: Path, tokenizer: Tokenizer, documents: bool) -> Tensor:
    if not path.is_file():
        raise InvalidInput(f"there is no text file {path}")
    if documents:
        parts = [list(item.ids) for item in tokenizer.encode_many(list(text_files.documents(path)))]
        begin = [] if tokenizer.bos is None else [tokenizer.bos]
        ids = [token for part in parts for token in (part if part[:1] == begin else [*begin, *part])]
    else:
        ids = list(tokenizer.encode(text_files.whole(path)).ids)
    if not ids:
        raise InvalidInput(f"{path} is empty")
    return torch.tensor(ids)


__all__ = ["Texts"]
