"""Which numbers live through dropout: as many random zeros and ones as are asked for, the same again from one seed."""

import torch
from torch import Tensor

STEPS = 1 << 16  # a number is dropped if one of this many equally likely numbers lies below the rate
POOL = 1 << 16  # words that are really drawn, at most
FACTORS = 0x21F0AAAD, 0x735A2D97  # of Wellons' hash "lowbias32"


class DropoutMasks:
    """Draws of one seed, piece after piece; from `rewind` on, the same again."""

    def __init__(self, rate: float, seed: int | None = None) -> None:
        self.below = min(STEPS - 1, round(rate * STEPS))
        self.scale = STEPS / (STEPS - self.below)
        self.seed = int(torch.randint(1 << 62, ())) if seed is None else seed  # from the user's generator
        self.buffers: dict[str, Tensor] = {}
        self.rewind()

    def rewind(self) -> None:
        """Back to the first draw; no memory is held."""
        self.generator = torch.Generator().manual_seed(self.seed)
        self.buffers.clear()
        self.pool: Tensor | None = None

    def kept(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """1 for the numbers of a piece that live, which are to be multiplied by `scale`, and 0 for the dropped.

        Numbers and not truths: comparing into them and multiplying by them is three times as fast as masks are. They
        stand in a buffer that the next piece is drawn into.
        """
        return torch.ge(self._numbers(shape), self.below - STEPS // 2, out=self.room("kept", shape, dtype))

    def _numbers(self, shape: torch.Size) -> Tensor:
        """Numbers of 16 bits, each as likely as any other.

        Torch draws with one thread, which would take as long as all else. So it draws a pool of words once, two numbers
        in each, and the pool is taken again and again under new keys. Two rounds of a hash hide that: a product carries
        what is in a word upwards, and adding each number's neighbour (without carry) brings it down again. Both can be
        undone, so numbers from one use of the pool are as independent as those drawn.
        """
        count = -(-shape.numel() // 2) + len(FACTORS)  # each round costs the last word its neighbour
        size = min(count, POOL)
        if self.pool is None or len(self.pool) < size:
            drawn = torch.empty(-(-size // 2), dtype=torch.int64).random_(-(1 << 63), None, generator=self.generator)
            self.pool = drawn.view(torch.int32)
        keys = torch.empty(-(-count // size), 1, dtype=torch.int32)
        keys.random_(-(1 << 31), 1 << 31, generator=self.generator)
        here, there = (self.room(name, torch.Size([len(keys), size]), torch.int32) for name in ("words", "other words"))
        torch.bitwise_xor(self.pool[:size], keys, out=here)
        for factor in FACTORS:
            numbers = here.mul_(factor).view(torch.int16).flatten()
            torch.bitwise_xor(numbers[:-1], numbers[1:], out=there.view(torch.int16).flatten()[:-1])
            here, there = there, here
        return here.view(torch.int16).flatten()[: shape.numel()].view(shape)

    def room(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A buffer that is used again and again: fresh memory costs more than what is done in it."""
        buffer = self.buffers.get(name)
        if buffer is None or buffer.dtype != dtype or buffer.numel() < shape.numel():
            buffer = self.buffers[name] = torch.empty(shape.numel(), dtype=dtype)
        return buffer[: shape.numel()].view(shape)


__all__ = ["POOL", "STEPS", "DropoutMasks"]
