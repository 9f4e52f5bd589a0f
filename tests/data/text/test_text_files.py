"""Text files, plain and packed."""

import gzip
from pathlib import Path

import pytest

from longspan.data.text.text_files import lines
from longspan.errors import InvalidInput


def test_a_file_damaged_in_its_middle_is_called_so(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress("\n".join(f"line {number * 7919}" for number in range(20000)).encode()))
    middle = len(packed) // 2
    packed[middle : middle + 40] = b"\xff" * 40
    path = tmp_path / "a.txt.gz"
    path.write_bytes(packed)
    with pytest.raises(InvalidInput, match=r"a\.txt\.gz is cut short or damaged"):
        list(lines(path))
