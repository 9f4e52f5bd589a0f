"""Freed memory stays with the process, where the C library can be told so."""

import subprocess
import sys

import pytest

# Whether a large tensor is mapped by itself, and so given back when it is freed: as usual, after malloc was told to
# keep memory, and after it was told back. It is malloc's own account: the system may move pages out at any time.
CODE = """
import ctypes
import torch
from longspan.train.malloc import keep_memory, usual_memory

FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")

class Account(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]

account = ctypes.CDLL(None).mallinfo2
account.restype = Account

def mapped(count):
    before = account().hblkhd
    made = torch.empty(count)
    return account().hblkhd - before >= 4 * count

usual = mapped(2**26)  # 256 MiB
told = keep_memory()
kept = not mapped(2**26) and account().fordblks >= 2**28
print(usual, told, kept, usual_memory(), mapped(2**28))  # 1 GiB, more than what was kept
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_freed_memory_is_kept() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.split() == 5 * ["True"]
