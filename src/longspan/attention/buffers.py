"""Named buffers that a kernel reuses from piece to piece."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


class Buffers:
    """Uninitialised tensors by name, reused: allocating fresh memory costs more than the arithmetic on it.

    A call overwrites what an earlier call with the same name returned, whatever its shape.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def __call__(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None
    ) -> Tensor:
        size, tensor = prod(shape), self._tensors.get(name)
        if tensor is None or tensor.dtype != dtype or tensor.numel() < size:
            tensor = self._tensors[name] = torch.empty(size, dtype=dtype, device=device)
        return (tensor if tensor.numel() == size else tensor[:size]).view(shape)

    def clear(self) -> None:
        """Frees all buffers."""
        self._tensors.clear()


__all__ = ["Buffers"]
