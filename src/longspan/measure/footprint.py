"""Memory of a process on a CPU: the largest part of it that was resident, and what a backward pass keeps."""

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


class Resident:
    """Bytes of this process that were in memory at most since this was made, beyond those that were then.

    Where Linux lets the process forget its older peak, that is exact; elsewhere what it had at its largest before
    counts too, so that a smaller peak than that is not seen (`exact` says which).
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
    """Has glibc give freed memory back at once from now on, the opposite of `train.memory.keep_memory`, and slower.

    Otherwise what was freed stays resident, and a peak is one of the allocator instead of the model.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        for setting, value in ((_MMAP_MAX, 2**16), (_MMAP_THRESHOLD, _SMALL), (_TRIM_THRESHOLD, _SMALL)):
            library.mallopt(setting, value)
        library.malloc_trim(0)


class _Made(TorchDispatchMode):
    """Remembers the storages that are made, without holding them."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, StorageWeakRef] = {}
        self.bytes: dict[int, int] = {}

    def note(self, tensor: Tensor) -> int:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
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
    """Of a forward pass: bytes that it keeps for the backward pass, and those of the largest tensor that it makes."""

    bytes: int
    largest: int


def saved_bytes(run: Callable[[], Tensor], known: Iterable[Tensor] = ()) -> int:
    """Bytes that a forward pass keeps for its backward pass."""
    return kept(run, known).bytes


def kept(run: Callable[[], Tensor], known: Iterable[Tensor] = ()) -> Kept:
    """What a forward pass keeps for its backward pass, which is then done too; what is `known` does not count.

    Each storage counts once and whole, however many views of it are kept. Counted is what autograd says that it saves,
    and what was made and is still alive, as functions with a backward pass of their own may keep tensors that no hook
    is told of. `run` should have run before: what it makes once and caches for good would count too.
    """
    made, saved = _Made(), set()

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            saved.add(made.note(tensor))
        return tensor.detach()  # the same storage; an output that saved itself would otherwise never be freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with made:
            out = run()
        gc.collect(1)  # what was just made and left in a cycle
        without = {int(StorageWeakRef(tensor.untyped_storage()).cdata) for tensor in known}
        own = int(StorageWeakRef(out.untyped_storage()).cdata)
        if own not in saved:
            without.add(own)
        new = {identity: count for identity, count in made.bytes.items() if identity not in without}
        alive = sum(count for identity, count in new.items() if not made.storages[identity].expired())
    out.backward()
    return Kept(alive, max(new.values(), default=0))


__all__ = ["Kept", "Resident", "give_back_memory", "kept", "out_of_memory", "saved_bytes"]
