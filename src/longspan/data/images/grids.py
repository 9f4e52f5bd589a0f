"""Generated images as one PNG file, and single images from files."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from longspan import files
from longspan.data.images.image_folders import image_header, pillow, read_image_file
from longspan.errors import InvalidInput

BORDER = 2  # grey pixels between the images of a grid


def grid(images: np.ndarray) -> np.ndarray:
    """Images of bytes (count, height, width, channels) side by side, nearly square, as (height, width, channels)."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    shape = (rows * (height + BORDER) - BORDER, columns * (width + BORDER) - BORDER, channels)
    canvas = np.full(shape, 127, dtype=np.uint8)
    for number, image in enumerate(images):
        top, left = number // columns * (height + BORDER), number % columns * (width + BORDER)
        canvas[top : top + height, left : left + width] = image
    return canvas


def write_png(path: Path, image: np.ndarray, *, enlarge: int = 1, about: Mapping[str, str] | None = None) -> None:
    """Writes bytes (height, width, channels) as PNG; `enlarge` repeats each pixel.

    `about` has texts by keyword: tEXt chunks, or iTXt for letters beyond Latin and for XML.
    """
    pixels = image.repeat(enlarge, 0).repeat(enlarge, 1)
    picture = pillow(path).fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    chunks = None
    if about is not None:
        from PIL.PngImagePlugin import PngInfo

        chunks = PngInfo()
        for keyword, text in about.items():
            (chunks.add_itxt if keyword.startswith("XML:") else chunks.add_text)(keyword, text)
    with files.replacing(path) as part:
        picture.save(part, format="PNG", pnginfo=chunks)


def read_image(path: Path, size: tuple[int, int] | None, channels: int, *, resize: bool = False) -> np.ndarray:
    """An image file as bytes (height, width, channels), of any size if `size` is None.

    Another size, or colour for grey and the reverse, is an error unless `resize`.
    """
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    own, single = image_header(path)
    if not resize and size is not None and own != size:
        raise InvalidInput(
            f"{path} has {own[0]} × {own[1]} pixels, and the model {size[0]} × {size[1]}; give --resize to scale it"
        )
    if not resize and single != (channels == 1):
        kinds = ("grey", "in colour") if single else ("in colour", "grey")
        raise InvalidInput(
            f"{path} is {kinds[0]}, and the images of the model are {kinds[1]}; give --resize to convert it"
        )
    return read_image_file(path, own if size is None else size, channels)


__all__ = ["grid", "read_image", "write_png"]
