"""Read CIFAR-10 (Krizhevsky 2009): .npz files, and the binary and Python forms of the original release.

The Python form is pickles. Unpickling can run any code, so the reader here replaces the few numpy names that these
files use by classes that only store their arguments, and refuses a file that uses any other name.
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
LARGEST = 1 << 28  # most bytes of a batch; a real one has 31 million


def read_arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (examples, 32, 32, 3) and labels of an .npz file with `x` and `y`."""
    pictures = read_pictures(path)
    if pictures.pixels.shape[1:] != (SIDE, SIDE, 3):
        shape = " × ".join(map(str, pictures.pixels.shape[1:]))
        raise InvalidInput(f"{path}: expected images of {SIDE} × {SIDE} × 3, got {shape}")
    return pictures.pixels, _checked(pictures.labels, str(path))


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
            content = _Reader(file, encoding="bytes").load()
    except InvalidInput as error:
        raise InvalidInput(f"{path} was not read: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise InvalidInput(f"{path} is no whole batch of CIFAR-10: {str(error) or type(error).__name__}") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} must hold a table with data and labels, not {type(content).__name__}")
    named = {key.decode(errors="replace") if isinstance(key, bytes) else key: value for key, value in content.items()}
    for name in ("data", "labels"):
        if name not in named:
            raise InvalidInput(f"{path} has no {name!r}; it has {', '.join(map(str, named))}")
    labels = named["labels"]
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise InvalidInput(f"{path}: labels must be a list of numbers 0 to {CLASSES - 1}")
    return _upright(_array(named["data"], len(labels), str(path))), np.array(labels, dtype=np.int64)


def _array(value: Any, count: int, source: str) -> np.ndarray:
    state = value.state if isinstance(value, _Stored) else None
    # The state of a pickled array: version, shape, type, whether columns come first, and the bytes.
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[4], bytes):
        raise InvalidInput(f"{source}: data must be an array, not {type(value).__name__}")
    _, shape, kind, columns_first, content = state
    if not isinstance(kind, _Stored) or kind.arguments[:1] not in ((b"u1",), ("u1",)) or columns_first:
        raise InvalidInput(f"{source}: data must be bytes, row by row")
    if shape != (count, 3 * PLANE) or len(content) != count * 3 * PLANE:
        raise InvalidInput(
            f"{source}: expected {count} images of {3 * PLANE} bytes, as there are {count} labels; "
            f"got the shape {shape} and {len(content)} bytes"
        )
    if not count:
        raise InvalidInput(f"{source} has no images")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


class _Stored:
    """Stands in for a numpy class: stores the arguments and the state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Encoded(_Stored):
    """Bytes, as Python 3 pickles them in a protocol of Python 2."""

    def __new__(cls, text: Any, coding: Any) -> Any:
        if not isinstance(text, str) or coding not in ("latin1", b"latin1"):
            raise InvalidInput("it asks for another encoding than that of bytes")
        return text.encode("latin1")


KNOWN: dict[tuple[str, str], type[_Stored]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Stored,
    ("numpy._core.multiarray", "_reconstruct"): _Stored,
    ("numpy", "ndarray"): _Stored,
    ("numpy", "dtype"): _Stored,
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
