"""Describe this machine: processor, memory, caches, accelerators, and software versions."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

import longspan

ROOT = Path("/")  # where /proc and /sys are; tests use another


def describe(root: Path = ROOT) -> dict[str, Any]:
    """The description that records contain, ready for JSON; unknown values are None or empty."""
    return {
        "processor": processor(root),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # a virtual machine may hide its processor's name
        "cores": _cores(root),
        "threads": os.cpu_count(),
        "usable": _usable(),
        "memory": memory(root),
        "caches": _caches(root),
        "gpu": _accelerators(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "longspan": longspan.__version__,
        "torch_threads": torch.get_num_threads(),
    }


def processor(root: Path = ROOT) -> str:
    """The name of the processor."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory(root: Path = ROOT) -> int | None:
    """Bytes that this machine has, or that the control group of this process may use, if that is less."""
    total = _meminfo(root, "MemTotal")
    if total is None and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [number for number in (total, _group(root)[0]) if number is not None]
    return min(limits, default=None)


def available(root: Path = ROOT) -> int | None:
    """Bytes that a process can still use without swapping; None if unknown."""
    limit, used = _group(root)
    limits = [_meminfo(root, "MemAvailable"), None if limit is None or used is None else max(0, limit - used)]
    return min((number for number in limits if number is not None), default=None)


def memory_kills() -> int | None:
    """The number of out-of-memory kills since the system started; None if unknown."""
    for path in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        try:
            text = Path(path).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            continue
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


def _usable() -> int | None:
    """The number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _cores(root: Path) -> int | None:
    cores, package = set(), ""
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "physical id":
            package = value.strip()
        elif name.strip() == "core id":
            cores.add((package, value.strip()))
    return len(cores) or None


def _caches(root: Path) -> dict[str, int]:
    """Bytes of each cache of the first core."""
    sizes = {}
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_text(folder / name).strip() for name in ("level", "type", "size"))
        unit = {"K": 2**10, "M": 2**20}.get(size[-1:], 1)
        number = size.rstrip("KM")
        if number.isdigit():
            sizes[f"L{level}{ {'Data': 'd', 'Instruction': 'i'}.get(kind, '') }"] = int(number) * unit
    return sizes


def _accelerators() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    cards = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [{"name": card.name, "memory": card.total_memory} for card in cards]


def _meminfo(root: Path, name: str) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _group(root: Path) -> tuple[int | None, int | None]:
    """The memory limit and use of this process's control group (version 2 or 1), such as a container's."""
    for folder, names in (("", ("memory.max", "memory.current")), ("memory", _FIRST)):
        limit, used = (_text(root / "sys/fs/cgroup" / folder / name).strip() for name in names)
        if limit.isdigit() and int(limit) < _UNLIMITED:
            return int(limit), int(used) if used.isdigit() else None
    return None, None


_FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_UNLIMITED = 2**60  # version 1 has a huge number if there is no limit


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


__all__ = ["available", "describe", "memory", "memory_kills", "processor"]
