"""Load weights without initialising parameters first."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from longspan.errors import InvalidInput, Unsupported
from longspan.nn.norm import OffsetRMSNorm

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _SkipInit(TorchFunctionMode):
    """Leaves parameters uninitialised: they are about to be overwritten."""

    SKIPPED = (
        "normal_",
        "uniform_",
        "zero_",
        "fill_",
        "mul_",
        "zeros_",
        "ones_",
        "xavier_uniform_",
        "kaiming_uniform_",
    )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("tensor")
        if isinstance(first, nn.Parameter) and getattr(func, "__name__", "") in self.SKIPPED:
            return first
        return func(*args, **kwargs)


@contextmanager
def skip_init(dtype: torch.dtype) -> Iterator[None]:
    """Models built inside have the type `dtype`, and their parameters are uninitialised memory."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _SkipInit():
            yield
    finally:
        torch.set_default_dtype(before)


def set_tensor(model: nn.Module, name: str, tensor: Tensor, dtype: torch.dtype, source: str) -> None:
    """Makes a tensor of a file a parameter of the model, without a copy if the type is the same.

    `source` is the tensor's name in the file, for errors.
    """
    owner, leaf = _owner(model, name)
    if getattr(owner, leaf).is_floating_point():
        _check_dtype(source, tensor.dtype)
        tensor = tensor.to(dtype)
    getattr(owner, leaf).data = tensor


@torch.no_grad()
def initialise(model: nn.Module, names: Iterable[str], std: float) -> None:
    """Initialises parameters that no file had: N(0, std), biases 0, gains of norms 1."""
    for name in names:
        owner, leaf = _owner(model, name)
        tensor = getattr(owner, leaf)
        if tensor.dim() > 1:
            nn.init.normal_(tensor, std=std)
        else:
            gain = isinstance(owner, (nn.LayerNorm, nn.RMSNorm)) and not isinstance(owner, OffsetRMSNorm)
            nn.init.constant_(tensor, float(gain and leaf == "weight"))


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    module, _, leaf = name.rpartition(".")
    return model.get_submodule(module), leaf


def common_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The narrowest type that holds all of a file's weights exactly."""
    dtypes: dict[torch.dtype, str] = {}
    for name in tensors:
        tensor = tensors[name]
        if tensor.is_floating_point():
            dtypes.setdefault(tensor.dtype, name)
    if not dtypes:
        raise InvalidInput("the file holds no weights")
    for dtype, name in dtypes.items():
        _check_dtype(name, dtype)
    return reduce(torch.promote_types, dtypes)


def _check_dtype(name: str, dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise Unsupported(f"{name}: weights of {dtype} are not read; convert them to float16 or wider")


__all__ = ["DTYPES", "common_dtype", "initialise", "set_tensor", "skip_init"]
