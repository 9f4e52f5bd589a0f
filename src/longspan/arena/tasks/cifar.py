"""CIFAR-10 (Krizhevsky 2009) as it lies on disk: arrays of numpy's, and the two forms of the original.

The Python form are pickles. A pickle is a program, and reading it runs that; so nothing of numpy or of anything else is
called here: what the original's pickles ask for is answered by classes that only keep what they are given, and
a file that asks for anything more is refused before any of it is done.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.images.image_files import read_pictures
from longspan.errors import InvalidInput

SIDE, CLASSES = 32, 10
PLANE = SIDE * SIDE
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
# No more is read of a batch: one has 10,000 images, and the pickle little beside them.
LARGEST = 1 << 28


def read_arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (examples, 32, 32, 3) and labels of an .npz file with `x` and `y`."""
    found = read_pictures(path)
    if found.pixels.shape[1:] != (SIDE, SIDE, 3):
        shape = " × ".join(map(str, found.pixels.shape[1:]))
        raise InvalidInput(f"{path}: expected images of {SIDE} × {SIDE} × 3, got {shape}")
    return found.pixels, _checked(found.labels, str(path))


def read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a batch of cifar-10-batches-bin: a byte for the label, and planes of red, green and blue."""
    content, row = np.fromfile(path, dtype=np.uint8), 1 + 3 * PLANE
    if not len(content):
        raise InvalidInput(f"{path} is empty: images of {row} bytes were expected")
    if len(content) % row:
        raise InvalidInput(
            f"{path}, image {len(content) // row}: {len(content) % row} bytes are left of the {row} that it should have"
        )
    rows = content.reshape(-1, row)
    return _upright(rows[:, 1:]), _checked(rows[:, 0], str(path))


def read_pickled(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a batch of cifar-10-batches-py."""
    if path.stat().st_size > LARGEST:
        raise InvalidInput(f"{path} has {path.stat().st_size:,} bytes, and a batch of CIFAR-10 has 31 million")
    try:
        with path.open("rb") as file:
            held = _Reader(file, encoding="bytes").load()
    except InvalidInput as error:
        raise InvalidInput(f"{path} was not read: {error}") from None
    except Exception as error:  # a program cut short, or a wrong one, fails in any way
        raise InvalidInput(f"{path} is no whole batch of CIFAR-10: {str(error) or type(error).__name__}") from None
    if not isinstance(held, dict):
        raise InvalidInput(f"{path} must hold a table with data and labels, not {type(held).__name__}")
    named = {key.decode(errors="replace") if isinstance(key, bytes) else key: value for key, value in held.items()}
    for name in ("data", "labels"):
        if name not in named:
            raise InvalidInput(f"{path} has no {name!r}; it has {', '.join(map(str, named))}")
    labels = named["labels"]
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise InvalidInput(f"{path}: labels must be a list of numbers 0 to {CLASSES - 1}")
    return _upright(_array(named["data"], len(labels), str(path))), np.array(labels, dtype=np.int64)


def _array(found: Any, count: int, source: str) -> np.ndarray:
    state = found.state if isinstance(found, _Kept) else None
    # As arrays keep themselves: version, shape, type, whether columns come first, and the bytes.
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[4], bytes):
        raise InvalidInput(f"{source}: data must be an array, not {type(found).__name__}")
    _, shape, kind, columns_first, content = state
    if not isinstance(kind, _Kept) or kind.given[:1] not in ((b"u1",), ("u1",)) or columns_first:
        raise InvalidInput(f"{source}: data must be bytes, row by row")
    if shape != (count, 3 * PLANE) or len(content) != count * 3 * PLANE:
        raise InvalidInput(
            f"{source}: expected {count} images of {3 * PLANE} bytes, as there are {count} labels; "
            f"got the shape {shape} and {len(content)} bytes"
        )
    if not count:
        raise InvalidInput(f"{source} has no images")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


class _Kept:
    """In the place of an array or a type: what it would be made of."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Encoded(_Kept):
    """How Python 3 writes bytes in the form of Python 2."""

    def __new__(cls, text: Any, coding: Any) -> Any:
        if not isinstance(text, str) or coding not in ("latin1", b"latin1"):
            raise InvalidInput("it asks for another encoding than that of bytes")
        return text.encode("latin1")


KNOWN: dict[tuple[str, str], type[_Kept]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Kept,
    ("numpy._core.multiarray", "_reconstruct"): _Kept,
    ("numpy", "ndarray"): _Kept,
    ("numpy", "dtype"): _Kept,
    ("_codecs", "encode"): _Encoded,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise InvalidInput(f"it asks for {module}.{name}, and of pickles only arrays and lists are read")
        return KNOWN[module, name]


def _upright(planes: np.ndarray) -> np.ndarray:
    return planes.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _checked(labels: np.ndarray, source: str) -> np.ndarray:
    wrong = np.flatnonzero(labels >= CLASSES)
    if wrong.size:
        raise InvalidInput(f"{source}, image {wrong[0]}: the label {labels[wrong[0]]} is none of 0..{CLASSES - 1}")
    return labels.astype(np.int64)


__all__ = ["BATCHES", "CLASSES", "SIDE", "read_arrays", "read_binary", "read_pickled"]
