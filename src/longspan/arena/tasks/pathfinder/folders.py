"""Pathfinder images from files: the folders of the original release, and .npz files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.files import read_text
from longspan.data.images.image_files import read_pictures
from longspan.data.npz_files import read_npz
from longspan.errors import InvalidInput, Unsupported
from longspan.parsing import refusing

COLUMNS = 4  # that are read of a row: folder, file, number, label; the rest describes the drawing
CONTOUR = 5  # the column with the number of paddles of a target


@dataclass(frozen=True)
class PathfinderImages:
    """Images of one size, in the order in which they are stored."""

    pixels: np.ndarray  # uint8 (images, size, size)
    labels: np.ndarray  # int64
    source: str
    empty: int = 0  # empty files, which were skipped; the release has some


def find_files(files: str, data: Path | None) -> Path:
    """The path as given, or relative to the folder of data sets."""
    tried = [Path(files), *([data / files] if data else [])]
    for path in tried:
        if path.exists():
            return path
    raise InvalidInput(f"there is no {' or '.join(map(str, tried))}; without the option files, images are generated")


def read_images(path: Path, size: int, contour_length: int | None = None) -> PathfinderImages:
    """The images of a folder with metadata/ and imgs/, of one with .npz files, or of one such file.

    Of several .npz files, only those with the given size and contour length are read.
    """
    if path.is_dir() and (path / "metadata").is_dir():
        return _read_release(path, size, contour_length)
    paths = [path] if path.is_file() else sorted(path.glob("*.npz"))
    if not paths:
        raise InvalidInput(f"{path} has neither a folder metadata, as the original release has, nor .npz files")
    matching, others = [], []
    for file in paths:
        pictures = read_pictures(file)
        length = _contour(file)
        if pictures.size != (size, size) or (contour_length and length and length != contour_length):
            others.append(f"{file.name} ({pictures.size[0]} × {pictures.size[1]}, contour {length or 'unknown'})")
        elif pictures.channels != 1 or len(pictures.names) != 2:
            raise InvalidInput(
                f"{file}: expected grey images of 2 labels, got {pictures.channels} channels and {len(pictures.names)}"
            )
        else:
            matching.append((file, length, pictures))
    expected = f"{size} × {size}" + f" and contour {contour_length}" * bool(contour_length)
    if not matching:
        raise InvalidInput(f"{path} has no images of {expected}, but {', '.join(others)}")
    if len({length for _, length, _ in matching}) > 1:
        raise InvalidInput(
            f"{path} has images of {expected} with contours of several lengths "
            f"({', '.join(f'{file.name}: {length}' for file, length, _ in matching)}): give contour_length"
        )
    pixels = np.concatenate([pictures.pixels[..., 0] for _, _, pictures in matching])
    labels = np.concatenate([pictures.labels for _, _, pictures in matching])
    return PathfinderImages(pixels, labels, ", ".join(str(file) for file, _, _ in matching))


def _contour(path: Path) -> int | None:
    array = read_npz(path, (), ("contour_length",)).get("contour_length")
    if array is None:
        return None
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{path}: contour_length must be numbers, not {array.dtype}")
    lengths = set(array.ravel().tolist())
    return int(lengths.pop()) if len(lengths) == 1 and np.isfinite(array).all() else None


def _read_release(folder: Path, size: int, contour_length: int | None) -> PathfinderImages:
    image = _pillow()
    tables = sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.stem), path.stem))
    if not tables:
        raise InvalidInput(f"{folder / 'metadata'} has no .npy files")
    pixels, labels, empty = [], [], 0
    for table in tables:
        for number, line in enumerate(_lines(table), 1):
            name, label, length = _row(line, table, number)
            if contour_length and length and length != contour_length:
                raise InvalidInput(
                    f"{table}, line {number}: contour {length}, and contour_length {contour_length} was asked for"
                )
            path = _image(folder, name, table, number)
            if not path.stat().st_size:
                empty += 1
                continue
            pixels.append(_read_png(image, path, size))
            labels.append(label)
    if not labels:
        raise InvalidInput(f"{folder} has no images: {empty} files are empty")
    return PathfinderImages(np.stack(pixels), np.array(labels, dtype=np.int64), str(folder), empty)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise Unsupported(
            "PNG images are read by pillow, which is not installed: pip install longspan[arena]"
        ) from None
    return Image


def _lines(path: Path) -> list[str]:
    if path.read_bytes()[:6] == b"\x93NUMPY":
        raise InvalidInput(f"{path} is an array; the release's .npy files are lines of text")
    return [line for line in read_text(path).splitlines() if line.strip()]


def _row(line: str, path: Path, number: int) -> tuple[str, int, int | None]:
    values = line.split()
    if len(values) < COLUMNS or values[3] not in ("0", "1", "0.0", "1.0"):
        raise InvalidInput(
            f"{path}, line {number}: expected folder, file, number, label (0 or 1), …, got {line[:80]!r}"
        )
    try:
        length = int(float(values[CONTOUR])) if len(values) > CONTOUR else None
    except (ValueError, OverflowError):
        raise InvalidInput(f"{path}, line {number}: the contour length is {values[CONTOUR]!r}, no number") from None
    return f"{values[0]}/{values[1]}", int(float(values[3])), length


def _image(folder: Path, name: str, table: Path, number: int) -> Path:
    """The path of an image; rows name the folder imgs/0 or just 0."""
    for path in (folder / name, folder / "imgs" / name):
        if path.is_file():
            return path
    raise InvalidInput(f"{table}, line {number}: there is no file {folder / name}")


def _read_png(image: Any, path: Path, size: int) -> np.ndarray:
    with refusing(path, "is no image, or damaged"), image.open(path, formats=["PNG"]) as opened:
        width, height = opened.size
        if (height, width) != (size, size):  # checked before the pixels are unpacked
            raise InvalidInput(f"{path} is {height} × {width}; size {size} was asked for")
        pixels = np.asarray(opened.convert("L"))
    return pixels


__all__ = ["PathfinderImages", "find_files", "read_images"]
