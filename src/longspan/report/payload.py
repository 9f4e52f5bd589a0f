"""Numbers inside a page: arrays in named blocks, each as base64 of deflate, and an index in JSON.

A page opens a block only when it needs it (`assets/core.js`). Blocks are scripts of a type that browsers do not run,
and base64 holds no markup, so that nothing in them, such as a token, can become part of the page.
"""

import json
import zlib
from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longspan.report.page import Html

# Types that the page reads; what is not listed is converted to the next one that holds it.
TYPES = {"uint8": "u1", "uint16": "u2", "uint32": "u4", "int32": "i4", "float16": "f2", "float32": "f4"}
WIDER = {"bool": "uint8", "int8": "int32", "int16": "int32", "int64": "int32", "float64": "float32"}
ALIGNMENT = 8  # typed arrays in JavaScript must begin at a multiple of their size


class Payload:
    """Collects arrays; what `array` returns goes into the index."""

    def __init__(self) -> None:
        self.blocks: dict[str, bytearray] = {}

    def array(self, block: str, array: NDArray[Any]) -> list[Any]:
        """Adds an array to a block and returns its place: block, offset, type, shape."""
        name = array.dtype.name
        array = np.ascontiguousarray(array, dtype=WIDER.get(name, name))
        data = self.blocks.setdefault(block, bytearray())
        data += bytes(-len(data) % ALIGNMENT)
        place = [block, len(data), TYPES[array.dtype.name], list(array.shape)]
        data += array.astype(array.dtype.newbyteorder("<")).tobytes()
        return place

    def markup(self, index: Any) -> Html:
        """The blocks as elements of the page, with the index among them."""
        written = json.dumps(index, ensure_ascii=False, allow_nan=False).encode()
        return Html("\n".join([_element("index", written), *(_element(*block) for block in self.blocks.items())]))


def _element(name: str, data: bytes | bytearray) -> str:
    packed = b64encode(zlib.compress(data, 9 if len(data) < 2**20 else 6)).decode()
    return f'<script type="application/octet-stream" id="block-{name}">{packed}</script>'


def finite(value: float | None) -> float | None:
    """A number for JSON, which has neither infinity nor NaN."""
    return None if value is None or not np.isfinite(value) else float(value)


__all__ = ["Payload", "finite"]
