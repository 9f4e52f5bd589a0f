"""What a mask says, in one whole number per key: (batch, 1, 1, keys).

transformers hands a mask from the model to its layers, and `generate` hands it from one call to the next, as a tensor
of four dimensions. Everything a layer must know is therefore in its numbers:

    0 .. 2²⁴−1   the text that the key belongs to, from 1 on; 0: padding
    2²⁴          whether the mask is causal
    2²⁵ ·        their sliding window, 0 if there is none
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TEXTS = 1 << 24
CAUSAL = TEXTS
WINDOW = TEXTS << 1


@dataclass(frozen=True)
class Seen:
    """A mask that was read: which keys a layer's queries see."""

    texts: Tensor  # (batch, keys): 0 for padding
    causal: bool
    window: int | None  # as transformers counts: causal the query included, else the reach to each side

    @property
    def keys(self) -> int:
        return self.texts.shape[1]

    @property
    def key_mask(self) -> Tensor | None:
        """True where a key is not padding; None: all are."""
        real = self.texts > 0
        return None if bool(real.all()) else real

    @property
    def packed(self) -> bool:
        return bool((self.texts > 1).any())


def write(seen: Seen) -> Tensor:
    """The tensor that travels through their model."""
    header = CAUSAL * seen.causal + WINDOW * (seen.window or 0)
    return (seen.texts.long() + header)[:, None, None, :]


def is_code(mask: Tensor) -> bool:
    """Whether a mask was written here: theirs are boolean or floating point."""
    return mask.dtype == torch.int64 and mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1


def read(mask: Tensor) -> Seen:
    codes = mask[:, 0, 0]
    header = int(codes[0, 0]) if codes.numel() else 0
    return Seen(codes % TEXTS, bool(header & CAUSAL), (header // WINDOW) or None)


__all__ = ["Seen", "is_code", "read", "write"]
