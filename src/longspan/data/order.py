"""Shuffled orders that are computed, not stored: any element of the order can be found without the others."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

ROUNDS = 4  # Luby & Rackoff 1988: four rounds of random functions are as good as a random permutation
ODD = np.uint64(0x9E3779B97F4A7C15)


class Shuffled(Sequence[int]):
    """The numbers 0..size-1 in an order drawn from `seed` and `epoch`.

    A Feistel network permutes all numbers of an even number of bits; results outside the range are permuted again
    until they are inside, which keeps it a permutation (Black & Rogaway 2002, "cycle walking").
    """

    def __init__(self, size: int, seed: int, epoch: int = 0) -> None:
        self.size = size
        self._half = max(1, ((max(size, 2) - 1).bit_length() + 1) // 2)
        keys = np.random.SeedSequence((seed, epoch)).generate_state(ROUNDS, np.uint64)
        self._keys = [np.uint64(key) for key in keys]

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [int(number) for number in self.at(np.arange(*index.indices(self.size)))]
        if not -self.size <= index < self.size:
            raise IndexError(f"index {index} of {self.size}")
        return int(self.at(np.array([index % self.size]))[0])

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.size, 1 << 16):
            yield from self[start : start + (1 << 16)]

    def at(self, indices: np.ndarray) -> np.ndarray:
        """The elements at many indices at once."""
        numbers = self._permute(indices.astype(np.uint64))
        while (outside := numbers >= self.size).any():
            numbers[outside] = self._permute(numbers[outside])
        return numbers.astype(np.int64)

    def _permute(self, numbers: np.ndarray) -> np.ndarray:
        half, mask = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = numbers >> half, numbers & mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return (left << half) | right


def _mix(numbers: np.ndarray) -> np.ndarray:
    """A hash in which every output bit depends on every input bit (splitmix64's finaliser, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        numbers = numbers * ODD
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(numbers ^ (numbers >> np.uint64(31)))


def draws(seed: int, epoch: int, number: int, *stream: int) -> np.random.Generator:
    """A random generator for one example in one epoch, independent of batch and process.

    `stream` tells several generators for the same example apart.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch, number, *stream))))


__all__ = ["Shuffled", "draws"]
