"""What the process does with memory that was freed: it keeps it, since the next step needs as much again."""

import ctypes
import sys

import torch

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4  # of glibc's malloc.h
_NO_MEMORY = ("can't allocate memory", "out of memory", "DefaultCPUAllocator", "not enough memory")
_MOST, _AHEAD = 2**31 - 1, 2**28
_USUAL = 2**25  # bytes from which on glibc maps a tensor apart, once it has seen such large ones freed


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def keep_memory() -> bool:
    """Have the C library keep freed memory instead of giving it back; whether it could be told.

    Each large tensor is otherwise mapped anew by the system and zeroed page by page: a quarter of a training step of a
    small model. Only glibc knows how; elsewhere nothing is done.
    """
    return _tell((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _MOST), (_TOP_PAD, _AHEAD))


def usual_memory() -> bool:
    """Have the C library do with freed memory what it does by itself, which gives large tensors back; for comparing."""
    return _tell((_MMAP_MAX, 2**16), (_MMAP_THRESHOLD, _USUAL), (_TRIM_THRESHOLD, 2 * _USUAL), (_TOP_PAD, 2**17))


def _tell(*settings: tuple[int, int]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(setting, value) == 1 for setting, value in settings)


__all__ = ["keep_memory", "out_of_memory", "usual_memory"]
