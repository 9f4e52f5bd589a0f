"""Keep freed memory in the process instead of returning it to the system, since the next step needs as much again."""

import ctypes
import sys

import torch

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4  # from glibc's malloc.h
_NO_MEMORY = ("can't allocate memory", "out of memory", "DefaultCPUAllocator", "not enough memory")
_MOST, _AHEAD = 2**31 - 1, 2**28
_USUAL = 2**25  # bytes from which glibc maps an allocation separately, after it has seen such large ones freed


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def keep_memory() -> bool:
    """Make malloc keep freed memory; returns whether that is possible (glibc only).

    Otherwise the system maps every large tensor anew and zeroes it page by page, which takes a quarter of a training
    step of a small model.
    """
    return _set((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _MOST), (_TOP_PAD, _AHEAD))


def usual_memory() -> bool:
    """Restore malloc's defaults, which return large tensors to the system; for comparisons."""
    return _set((_MMAP_MAX, 2**16), (_MMAP_THRESHOLD, _USUAL), (_TRIM_THRESHOLD, 2 * _USUAL), (_TOP_PAD, 2**17))


def _set(*settings: tuple[int, int]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(setting, value) == 1 for setting, value in settings)


__all__ = ["keep_memory", "out_of_memory", "usual_memory"]
