"""Small pictures as PNG files: enough for maps in pages that run without their script, and in SVG files."""

import struct
import zlib
from base64 import b64encode

import numpy as np
from numpy.typing import NDArray

COLOUR_TYPES = {3: 2, 4: 6}  # channels: PNG's number for RGB and RGBA


def png(pixels: NDArray[np.uint8]) -> bytes:
    """The file of a picture, (height, width, 3 or 4)."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(pixels))
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def data_address(pixels: NDArray[np.uint8]) -> str:
    """The picture as an address that holds it."""
    return "data:image/png;base64," + b64encode(png(pixels)).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


__all__ = ["data_address", "png"]
