"""What the process does with memory that was freed: it keeps it, since the next step needs as much again."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # of glibc's malloc.h
_MOST, _AHEAD = 2**31 - 1, 2**28


def keep_memory() -> bool:
    """Have the C library keep freed memory instead of giving it back; whether it could be told.

    Each large tensor is otherwise mapped anew by the system and zeroed page by page: a quarter of a training step of a
    small model. Only glibc knows how; elsewhere nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _MOST), (_TOP_PAD, _AHEAD))
    return all(mallopt(setting, value) == 1 for setting, value in settings)


__all__ = ["keep_memory"]
