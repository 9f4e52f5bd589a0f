"""Files of word vectors: word2vec's text and binary formats, and GloVe's text, which has no first line of sizes."""

import re
from array import array
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from longspan.errors import InvalidInput

SIZE = re.compile("0*[1-9][0-9]{,11}")
LONGEST_WORD = 1 << 12  # bytes; a binary file without a space in so many is something else


def read_vectors(path: Path) -> tuple[list[str], Float[Tensor, "words dim"]]:
    """The words and their vectors; the format is that of the content."""
    if not path.is_file():
        raise InvalidInput(f"{path} is not there: vectors in word2vec's or GloVe's format")
    with path.open("rb") as file:
        first = file.readline(1 << 20)
        fields = first.split()
        numeric = len(fields) == 2 and all(field.isdigit() for field in fields)
        if not numeric and len(fields) >= 2:
            return _glove(path, file, first)
        if not numeric or not all(SIZE.fullmatch(field.decode()) for field in fields):
            came = first.decode("utf-8", "replace").split()
            raise InvalidInput(
                f"{path}, line 1: expected the number of words and their width, or a word and its numbers, "
                f"got {came!r:.80}"
            )
        count, dim = map(int, fields)
        # A number takes a digit and a space, or four bytes.
        if 2 * count * dim > path.stat().st_size:
            raise InvalidInput(f"{path} says {count} words of {dim} numbers, and is too short for them")
        begin = file.tell()
        second = file.readline(1 << 20)
        file.seek(begin)
        return (_text if _is_text(second) else _binary)(path, file, count, dim)


def is_vectors(path: Path) -> bool:
    """Whether a file begins as a file of word vectors."""
    with path.open("rb") as file:
        fields = file.readline(1 << 20).split()
    if len(fields) == 2 and all(SIZE.fullmatch(field.decode("latin-1")) for field in fields):
        return True
    return len(fields) > 2 and all(re.fullmatch(rb"[-+0-9.eE]+", field) for field in fields[-2:])


def _is_text(line: bytes) -> bool:
    """Whether a line can be text; the bytes of float32 numbers are not UTF-8, or are control characters."""
    try:
        text = line.decode("utf-8", "surrogateescape")
    except UnicodeDecodeError:
        return False
    return all(part.isprintable() for part in text.split()[1:])


def _text(path: Path, file: IO[bytes], count: int, dim: int) -> tuple[list[str], Tensor]:
    vectors, words = torch.empty(count, dim), list[str]()
    for number, line in enumerate(file, start=2):
        word, numbers = _row(line, dim)
        if len(words) == count or not word or len(numbers) != dim:
            raise InvalidInput(f"{path}, line {number}: expected {count} lines of a word and {dim} numbers")
        vectors[len(words)] = torch.tensor(_numbers(numbers, path, number))
        words.append(word)
    if len(words) < count:
        raise InvalidInput(f"{path} says it has {count} words, and has {len(words)}; it was cut off")
    return words, vectors


def _glove(path: Path, file: IO[bytes], first: bytes) -> tuple[list[str], Tensor]:
    dim = len(first.split()) - 1
    words, values = list[str](), array("f")
    for number, line in enumerate(chain([first], file), start=1):
        word, numbers = _row(line, dim)
        if not word or len(numbers) != dim:
            raise InvalidInput(
                f"{path}, line {number}: expected a word and {dim} numbers, as in line 1, "
                f"got {len(line.split())} fields"
            )
        values.extend(_numbers(numbers, path, number))
        words.append(word)
    return words, torch.frombuffer(values, dtype=torch.float32).view(len(words), dim).clone()


def _row(line: bytes, dim: int) -> tuple[str, list[str]]:
    """The word and the numbers of a line; a word may have spaces in it, as some of GloVe's have."""
    fields = line.decode("utf-8", "surrogateescape").rstrip(" \r\n").split(" ")
    if len(fields) <= dim:
        return fields[0], fields[1:]
    return " ".join(fields[:-dim]), fields[-dim:]


def _numbers(fields: Sequence[str], path: Path, number: int) -> list[float]:
    try:
        values = [float(field) for field in fields]
    except ValueError as error:
        raise InvalidInput(f"{path}, line {number}: {error}") from None
    if not np.isfinite(values).all():
        raise InvalidInput(f"{path}, line {number}: a number is not finite")
    return values


def _binary(path: Path, file: IO[bytes], count: int, dim: int) -> tuple[list[str], Tensor]:
    """Each word, a space, and its numbers as float32; the tool writes a line end after them, other programs do not."""
    if count * (4 * dim + 2) > path.stat().st_size:
        raise InvalidInput(f"{path} says {count} words of {dim} numbers, and is too short for them")
    vectors, words = np.empty((count, dim), dtype="<f4"), list[str]()
    for row in range(count):
        word = bytearray()
        while (byte := file.read(1)) != b" ":
            if not byte or len(word) > LONGEST_WORD:
                raise InvalidInput(f"{path}: word {row + 1} of {count} is cut off: not a binary file of word2vec")
            if byte != b"\n" or word:
                word += byte
        content = file.read(4 * dim)
        if len(content) < 4 * dim:
            raise InvalidInput(f"{path}: the vector of word {row + 1} of {count} is cut off")
        vectors[row] = np.frombuffer(content, dtype="<f4")
        words.append(word.decode("utf-8", "surrogateescape"))
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])
        raise InvalidInput(f"{path}: the vector of word {row + 1} has a number that is not finite")
    return words, torch.from_numpy(vectors.astype(np.float32))


def write_vectors(file: IO[bytes], words: Sequence[str], vectors: Float[Tensor, "words dim"]) -> None:
    """Word2vec's text format: a line with number and width, then a line per word."""
    file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
    for word, vector in zip(words, vectors.detach().cpu()):
        line = f"{word} {' '.join(map(repr, vector.tolist()))}\n"
        file.write(line.encode("utf-8", "surrogateescape"))


__all__ = ["is_vectors", "read_vectors", "write_vectors"]
