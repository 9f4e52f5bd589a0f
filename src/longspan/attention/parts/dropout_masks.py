"""Reproducible dropout masks from a seed."""

import torch
from torch import Tensor

from longspan.attention.buffers import Buffers

STEPS = 1 << 16  # resolution of the rate: masks compare 16-bit random numbers with it
POOL = 1 << 16  # random words drawn by torch, at most; the rest are hashed from them
FACTORS = 0x21F0AAAD, 0x735A2D97  # multipliers of Wellons' hash "lowbias32"


class DropoutMasks:
    """Dropout masks drawn from one seed, piece by piece; `rewind` starts the same sequence again."""

    def __init__(self, rate: float, seed: int | None = None) -> None:
        self.below = min(STEPS - 1, round(rate * STEPS))
        self.scale = STEPS / (STEPS - self.below)
        self.seed = int(torch.randint(1 << 62, ())) if seed is None else seed  # follows torch.manual_seed
        self.buffer = Buffers()
        self.rewind()

    def rewind(self) -> None:
        """Go back to the first draw and free the buffers."""
        self.generator = torch.Generator().manual_seed(self.seed)
        self.buffer.clear()
        self.pool: Tensor | None = None

    def kept(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """1 for kept numbers, to be multiplied by `scale`, and 0 for dropped ones.

        They have the dtype of the weights: comparing into it and multiplying by it is three times as fast as with
        booleans. The next piece overwrites the buffer.
        """
        return torch.ge(self._numbers(shape), self.below - STEPS // 2, out=self.buffer("kept", shape, dtype))

    def _numbers(self, shape: torch.Size) -> Tensor:
        """Uniform 16-bit numbers.

        Torch draws with one thread, which would take as long as the attention itself. So it draws a pool of words
        once, two numbers in each, and every use of the pool xors it with a new key. Two hash rounds then mix the bits:
        a multiplication moves information to higher bits, and a xor with the neighbouring number moves it back down.
        Both steps are invertible, so numbers from one use of the pool are as independent as those drawn.
        """
        count = -(-shape.numel() // 2) + len(FACTORS)  # each round loses the last word, which has no neighbour
        size = min(count, POOL)
        if self.pool is None or len(self.pool) < size:
            drawn = torch.empty(-(-size // 2), dtype=torch.int64).random_(-(1 << 63), None, generator=self.generator)
            self.pool = drawn.view(torch.int32)
        keys = torch.empty(-(-count // size), 1, dtype=torch.int32)
        keys.random_(-(1 << 31), 1 << 31, generator=self.generator)
        shape_of_words = torch.Size([len(keys), size])
        here, there = (self.buffer(name, shape_of_words, torch.int32) for name in ("words", "other words"))
        torch.bitwise_xor(self.pool[:size], keys, out=here)
        for factor in FACTORS:
            numbers = here.mul_(factor).view(torch.int16).flatten()
            torch.bitwise_xor(numbers[:-1], numbers[1:], out=there.view(torch.int16).flatten()[:-1])
            here, there = there, here
        return here.view(torch.int16).flatten()[: shape.numel()].view(shape)


__all__ = ["POOL", "STEPS", "DropoutMasks"]
