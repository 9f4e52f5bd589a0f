"""Read .npz files safely: each array must be plain numbers or text, and no larger than its file.

`numpy.load` allocates whatever shape a file names, however large, before it reads any of it.
"""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from longspan.data.text.text_files import most_unpacked
from longspan.errors import InvalidInput
from longspan.parsing import refusing

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
PLAIN = "biufUS"  # numpy's kinds of numbers and text


def read_npz(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The named arrays of a file; a missing one is an error if it is in `needed`."""
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    with refusing(path, "is no .npz file of plain arrays"), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for name in needed:
            if name not in members:
                raise InvalidInput(f"{path} has no array {name!r}; it has {', '.join(list(members)[:20])}")
        wanted = [name for name in (*needed, *optional) if name in members]
        if sum(members[name].file_size for name in wanted) > most_unpacked(path):
            raise InvalidInput(f"{path} unpacks to more than {most_unpacked(path):,} bytes, and is not read")
        return {name: _array(archive, members[name], f"{path}: {name}") for name in wanted}
    raise AssertionError


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> np.ndarray:
    with cast(zipfile.ZipExtFile, archive.open(info)) as file:
        version = np.lib.format.read_magic(file)
        if version not in HEADERS:
            raise InvalidInput(f"{where} is of numpy's version {version}, which is for arrays that are not plain")
        shape, columns_first, kind = HEADERS[version](file)
        if kind.kind not in PLAIN:
            raise InvalidInput(f"{where} holds {kind}; expected are plain arrays of numbers or text")
        size, stored = math.prod(shape) * kind.itemsize, info.file_size - file.tell()
        if size != stored or min(shape, default=0) < 0:
            raise InvalidInput(f"{where} says {shape} of {kind}, which is {size:,} bytes, and {stored:,} follow")
        content: Any = np.empty(size, dtype=np.uint8)
        filled = 0
        while filled < size:
            count = file.readinto(content[filled:])
            if not count:
                raise InvalidInput(f"{where} is cut short: {filled:,} of {size:,} bytes are there")
            filled += count
        file.read(1)  # reading past the end makes zipfile compare the checksum
    array = content.view(kind) if size else np.empty(math.prod(shape), kind)
    return array.reshape(shape, order="F" if columns_first else "C")


__all__ = ["read_npz"]
