"""Freed memory stays with the process, where the C library can be told so."""

import subprocess
import sys

import pytest

# A tensor that is freed, and how much of the process is resident then, before and after it was told, and told back.
CODE = """
import torch
from longspan.train.malloc import keep_memory, usual_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def left():
    before = resident()
    made = torch.ones(2**26)  # 256 MiB
    del made
    return resident() - before

given_back = left()
print(keep_memory(), given_back < 2**24, left() > 2**27, usual_memory(), left() < 2**24)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told")
def test_freed_memory_is_kept() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.split() == 5 * ["True"]
