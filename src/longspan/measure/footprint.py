"""Memory of a process on a CPU: its peak, and what a forward pass saves for the backward pass."""

import ctypes
import gc
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longspan.train.malloc import out_of_memory

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
_SMALL = 2**16
_weak_reference: Callable[[torch.UntypedStorage], Any] = StorageWeakRef


class Resident:
    """The peak of the process's resident memory since this object was made, beyond what was resident then.

    It is exact where Linux can reset the peak (`exact`); elsewhere a peak below an earlier one is not seen.
    """

    def __init__(self) -> None:
        gc.collect()
        try:
            Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is resident now
            self.exact = True
        except OSError:
            self.exact = False
        self.before = _status("VmRSS") if self.exact else _largest()

    def peak(self) -> int:
        return max(0, (_status("VmHWM") if self.exact else _largest()) - self.before)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _largest() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def give_back_memory() -> None:
    """Make glibc return freed memory at once, the opposite of `train.malloc.keep_memory`, and slower.

    Otherwise freed memory stays resident, and the peak shows the allocator instead of the model.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        for setting, value in ((_MMAP_MAX, 2**16), (_MMAP_THRESHOLD, _SMALL), (_TRIM_THRESHOLD, _SMALL)):
            library.mallopt(setting, value)
        library.malloc_trim(0)


class _Made(TorchDispatchMode):
    """Records the storages that are created, by weak references."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: dict[int, Any] = {}
        self.bytes: dict[int, int] = {}

    def note(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        reference = _weak_reference(storage)
        self.storages[reference.cdata], self.bytes[reference.cdata] = reference, storage.nbytes()
        return int(reference.cdata)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                self.note(leaf)
        return out


@dataclass(frozen=True)
class Kept:
    """Bytes that a forward pass saves for the backward pass, and bytes of the largest tensor it creates."""

    bytes: int
    largest: int


def saved_bytes(run: Callable[[], Tensor], known: Iterable[Tensor] = ()) -> int:
    """Bytes that a forward pass saves for its backward pass."""
    return kept(run, known).bytes


def kept(run: Callable[[], Tensor], known: Iterable[Tensor] = ()) -> Kept:
    """What a forward pass saves for its backward pass, which is then run too; `known` tensors do not count.

    Each storage counts once and whole, however many views are saved. Counts what autograd's hooks report, and new
    storages that are still alive, since custom autograd functions may save tensors without a hook. Call `run` once
    before: otherwise its caches count too.
    """
    storages, saved = _Made(), set()

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            saved.add(storages.note(tensor))
        return tensor.detach()  # the same storage; an output that saves itself would never be freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with storages:
            out = run()
        gc.collect(1)  # new objects in reference cycles
        without = {int(_weak_reference(tensor.untyped_storage()).cdata) for tensor in known}
        output = int(_weak_reference(out.untyped_storage()).cdata)
        if output not in saved:
            without.add(output)
        new = {identity: count for identity, count in storages.bytes.items() if identity not in without}
        alive = sum(count for identity, count in new.items() if not storages.storages[identity].expired())
    torch.autograd.backward(out)
    return Kept(alive, max(new.values(), default=0))


__all__ = ["Kept", "Resident", "give_back_memory", "kept", "out_of_memory", "saved_bytes"]
