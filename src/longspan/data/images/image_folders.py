"""Folders of images, one folder for each label: PNG, JPEG and what else Pillow reads, as images of one size."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.images.image_files import Pictures, read_pictures
from longspan.data.text.text_folders import IMAGES, folder_files
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.parsing import refusing

Size = tuple[int, int]  # height and width
SINGLE = ("1", "L", "LA", "I", "I;16", "F")  # modes of one channel


def read_image_folder(
    path: Path, resize: Sequence[int] | None = None, *, grey: bool = False, names: Sequence[str] | None = None
) -> Pictures:
    """The images in the folders inside a folder, whose names are the labels; `names` are all labels, if known.

    Images have one size, or are scaled to `resize`: height and width, or the side of a square. Transparency is dropped.
    Images are grey if all of them are, or if `grey`.
    """
    files = folder_files(path, IMAGES)
    if files[0][1] is None:
        raise InvalidInput(f"{path} has images, but no folders that name their labels: put them into {path}/LABEL/")
    labels = sorted({str(label) for _, label in files}) if names is None else list(names)
    for file, label in files:
        if label not in labels:
            raise InvalidInput(f"{file}: no training image has the label {label!r}; they have {', '.join(labels[:8])}")
    if len(labels) < 2:
        raise InvalidInput(f"{path}: all images are in one folder, {labels[0]}; at least two labels are needed")
    size = _size(resize)
    channels, first = 1, files[0][0]
    for file, _ in files:  # the headers only, so that the pixels are in memory once
        shape, single = image_header(file)
        channels = channels if single or grey else 3
        size = size or shape
        if resize is None and shape != size:
            raise InvalidInput(
                f"{file} has {_spell(shape)} pixels, and {first} {_spell(size)}: "
                "give all images one size by resize, such as --resize 32"
            )
    assert size is not None
    pixels = np.empty((len(files), *size, channels), dtype=np.uint8)
    for number, (file, _) in enumerate(files):
        pixels[number] = read_image_file(file, size, channels)
    numbers = {name: number for number, name in enumerate(labels)}
    return Pictures(pixels, np.array([numbers[str(label)] for _, label in files]), tuple(labels), str(path))


def image_size(path: Path, resize: Sequence[int] | None = None) -> Size:
    """Height and width of the images of a file or a folder, from the first one."""
    size = _size(resize)
    if not path.is_dir():
        return read_pictures(path).size
    if size is not None:
        return size
    return image_header(folder_files(path, IMAGES)[0][0])[0]


def _size(resize: Sequence[int] | None) -> Size | None:
    if resize is None:
        return None
    if len(resize) > 2:
        raise InvalidOption(f"resize is one side, or height and width, not {len(resize)} numbers")
    return resize[0], resize[-1]


def image_header(path: Path) -> tuple[Size, bool]:
    """Height and width of an image, and whether it has one channel."""
    with _opened(path) as image:
        return (image.height, image.width), image.mode in SINGLE


def read_image_file(path: Path, size: Size, channels: int) -> np.ndarray:
    """An image as bytes (height, width, channels)."""
    with _opened(path) as image:
        converted = image.convert("L" if channels == 1 else "RGB")
        if (converted.height, converted.width) != size:
            converted = converted.resize((size[1], size[0]), pillow(path).Resampling.BILINEAR)
        pixels = np.asarray(converted, dtype=np.uint8)
    return pixels[..., None] if channels == 1 else pixels


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with refusing(path, "is not a readable image"), pillow(path).open(path) as image:
        yield image


def pillow(path: Path) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise Unsupported(f"{path}: images need the package pillow; install it: pip install pillow") from None
    return Image


def _spell(shape: Sequence[int]) -> str:
    return f"{shape[0]} × {shape[1]}"


__all__ = ["image_header", "image_size", "pillow", "read_image_file", "read_image_folder"]
