"""Counting what a computation does: multiplications, the largest tensor, and what is kept for the backward pass."""

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longspan.measure.flops import count_flops


def _elements(tensor: Tensor) -> int:
    """Allocated elements: expanded and overlapping views take no further memory."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


_weak_reference: Callable[[torch.UntypedStorage], Any] = StorageWeakRef


class LargestTensor(TorchDispatchMode):
    """Records the largest tensor that is created, backward passes included.

    >>> with LargestTensor() as seen:
    ...     out = torch.ones(3, 1) @ torch.ones(1, 4)
    >>> seen.elements
    12
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements, self.maker = 0, ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided and _elements(leaf) > self.elements:
                self.elements, self.maker = _elements(leaf), str(func)
        return out


class _Created(TorchDispatchMode):
    """Records the floating-point storages that are created, by weak references."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                reference = _weak_reference(leaf.untyped_storage())
                self.elements[reference.cdata] = (reference, _elements(leaf))
        return out


def count_kept(run: Callable[[], Tensor], known: Iterable[Tensor]) -> int:
    """The number of floats that `run` keeps for its backward pass, not counting `known` tensors.

    Counts the storages that are still alive, each once and whole, since a checkpoint or a context may keep tensors
    without calling a saved-tensor hook. The output is alive anyway, and is counted only if autograd saved it.
    """
    saved: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        saved.add(_identity(tensor))
        return tensor

    run()  # fills caches, which are not part of a call's cost
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), _Created() as created:
        out = run()
    gc.collect(1)  # new objects in reference cycles; a full collection takes a second
    without = {_identity(tensor) for tensor in known} | ({_identity(out)} - saved)
    return sum(
        elements
        for identity, (reference, elements) in created.elements.items()
        if identity not in without and not reference.expired()
    )


def _identity(tensor: Tensor) -> int:
    return int(_weak_reference(tensor.untyped_storage()).cdata)


__all__ = ["LargestTensor", "count_flops", "count_kept"]
