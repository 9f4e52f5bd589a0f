"""GGUF files: metadata, and tensors that are mapped into memory and dequantised when used.

The header is read here, not by the package `gguf`, which takes seconds for a vocabulary and reads past the end of a
truncated file. That package dequantises tensors.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.errors import InvalidInput, Unsupported

MAGIC, VERSIONS, ALIGNMENT = b"GGUF", (2, 3), 32
MOST_VALUES = 1 << 24  # of an array in the header; a Python value takes ten times its bytes
DIMENSIONS, DEEPEST = 4, 8  # the most of a tensor, and of arrays in arrays
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY, SINGLE = 8, 9, 6
PLAIN = {0: torch.float32, 1: torch.float16, 28: torch.float64, 30: torch.bfloat16}


@dataclass(frozen=True)
class Entry:
    """Type, shape and position of a tensor."""

    kind: int  # GGML's number of its type
    shape: tuple[int, ...]  # as torch has it, rows first
    start: int
    stop: int


class GgufFile(Mapping[str, Tensor]):
    """Tensors by name, quantised ones as float32; and `metadata` by key."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, path.stat().st_size
        if self.size < 24:
            raise InvalidInput(f"{path} is no GGUF file: it has {self.size} bytes")
        self._bytes = torch.from_file(str(path), shared=False, size=self.size, dtype=torch.uint8)
        reader = _Reader(path, self._bytes.numpy().data)
        count, pairs = reader.opening()
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = reader.text()
            self.metadata[key] = reader.value(reader.number("I"))
        self.entries = self._entries(reader, count)
        self.nbytes = sum(math.prod(entry.shape) * 4 for entry in self.entries.values())  # unpacked, in float32

    def __getitem__(self, name: str) -> Tensor:
        entry = self.entries[name]
        data = self._bytes[entry.start : entry.stop]
        if entry.kind in PLAIN:
            return data.view(PLAIN[entry.kind]).view(entry.shape)
        kinds, sizes, dequantize = _package()
        block, size = sizes[kinds(entry.kind)]
        packed = data.numpy().reshape(*entry.shape[:-1], entry.shape[-1] // block * size)
        try:
            return torch.from_numpy(dequantize(packed, kinds(entry.kind)))
        except NotImplementedError as error:
            raise Unsupported(f"{self.path}: {name} cannot be unpacked: {error}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def _entries(self, reader: "_Reader", count: int) -> dict[str, Entry]:
        listed = []
        for _ in range(count):
            name, dimensions = reader.text(), reader.number("I")
            if dimensions > DIMENSIONS:
                raise InvalidInput(f"{self.path}: {name} has {dimensions} dimensions; at most {DIMENSIONS} can be")
            shape = tuple(reversed([reader.number("Q") for _ in range(dimensions)]))
            listed.append((name, shape, reader.number("I"), reader.number("Q")))
        align = self.metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(align, int) or isinstance(align, bool) or align < 8 or align % 8 or align > self.size:
            raise InvalidInput(f"{self.path}: general.alignment must be a multiple of 8, not {align!r}")
        first = -(-reader.at // align) * align
        entries = {}
        for name, shape, kind, offset in listed:
            if offset % align:
                raise InvalidInput(f"{self.path}: {name} begins at byte {offset}, which is no multiple of {align}")
            start = first + offset
            stop = start + self._bytes_of(name, shape, kind)
            if stop > self.size:
                raise InvalidInput(f"{self.path} is cut off: {name} ends at byte {stop}, and the file at {self.size}")
            entries[name] = Entry(kind, shape, start, stop)
        return entries

    def _bytes_of(self, name: str, shape: tuple[int, ...], kind: int) -> int:
        if kind in PLAIN:
            return math.prod(shape) * PLAIN[kind].itemsize
        kinds, sizes, _ = _package()
        if kind not in set(kinds):
            raise Unsupported(f"{self.path}: {name} is of the type {kind}, which the package gguf does not know")
        block, size = sizes[kinds(kind)]
        if not shape or shape[-1] % block:
            raise InvalidInput(f"{self.path}: {name} has rows of {shape[-1:]}, which {block} do not divide")
        return int(math.prod(shape) // block * size)


class _Reader:
    """Reads the header, value by value."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.at = path, data, 0

    def opening(self) -> tuple[int, int]:
        """The numbers of tensors and of metadata entries."""
        if self.data[:4] != MAGIC:
            raise InvalidInput(f"{self.path} is no GGUF file: it begins with {bytes(self.data[:4])!r}")
        self.at = 4
        version = self.number("I")
        if version not in VERSIONS:
            raise Unsupported(f"{self.path} is of GGUF's version {version}; those read here are 2 and 3, little-endian")
        return self.number("Q"), self.number("Q")

    def number(self, code: str) -> Any:
        return self._unpack(f"<{code}")[0]

    def text(self) -> str:
        size = self.number("Q")
        if self.at + size > len(self.data):
            raise self._cut()
        self.at += size
        return bytes(self.data[self.at - size : self.at]).decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == TEXT:
            return self.text()
        if kind == ARRAY:
            of, size = self.number("I"), self.number("Q")
            if depth == DEEPEST:
                raise InvalidInput(f"{self.path} has arrays in arrays at byte {self.at}, more than {DEEPEST} deep")
            if size > MOST_VALUES:
                raise InvalidInput(
                    f"{self.path} has an array of {size:,} values at byte {self.at}; at most {MOST_VALUES:,} are read"
                )
            if of not in SCALARS:
                if size * 8 > len(self.data) - self.at:  # each has its length before it
                    raise self._cut()
                return [self.value(of, depth + 1) for _ in range(size)]
            if size > len(self.data) - self.at:
                raise self._cut()
            values = self._unpack(f"<{size}{SCALARS[of]}")
            return [_shortest(value) for value in values] if of == SINGLE else list(values)
        if kind not in SCALARS:
            raise InvalidInput(f"{self.path} has metadata of an unknown type {kind} at byte {self.at}")
        number = self.number(SCALARS[kind])
        return _shortest(number) if kind == SINGLE else number

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from(layout, self.data, self.at)
        except struct.error:
            raise self._cut() from None
        self.at += struct.calcsize(layout)
        return values

    def _cut(self) -> InvalidInput:
        return InvalidInput(f"{self.path} is cut off in its header, at byte {self.at} of {len(self.data)}")


def _shortest(value: float) -> float:
    """The shortest decimal of a float32: 1e-5, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _package() -> tuple[Any, Any, Any]:
    """Types, their block sizes and the dequantiser, from the package `gguf`."""
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise Unsupported("quantised GGUF files need the package gguf: `pip install longspan[gguf]`") from None
    return GGMLQuantizationType, GGML_QUANT_SIZES, dequantize


__all__ = ["GgufFile"]
