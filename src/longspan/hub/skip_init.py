"""Numbers for a model that is built to be filled: nothing is drawn that would be overwritten, or copied in vain."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from longspan.errors import InvalidInput, Unsupported

KINDS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _NotDrawn(TorchFunctionMode):
    """Parameters are left as they lie in memory: what is about to be overwritten need not be drawn."""

    DRAWS = ("normal_", "uniform_", "zero_", "fill_", "mul_", "zeros_", "ones_", "xavier_uniform_", "kaiming_uniform_")

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("tensor")
        if isinstance(first, nn.Parameter) and getattr(func, "__name__", "") in self.DRAWS:
            return first
        return func(*args, **kwargs)


@contextmanager
def unfilled(dtype: torch.dtype) -> Iterator[None]:
    """Models that are built inside are of `dtype`, and their parameters hold whatever was in memory."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _NotDrawn():
            yield
    finally:
        torch.set_default_dtype(before)


def put(model: nn.Module, name: str, tensor: Tensor, dtype: torch.dtype, source: str) -> None:
    """Makes a tensor of a file the model's own, as it lies in the file where the type is the same.

    `source` is what the file calls it.
    """
    owner, leaf = _owner(model, name)
    if getattr(owner, leaf).is_floating_point():
        _check_kind(source, tensor.dtype)
        tensor = tensor.to(dtype)
    getattr(owner, leaf).data = tensor


@torch.no_grad()
def draw(model: nn.Module, names: Iterable[str], std: float) -> None:
    """Initial values for what no file had: N(0, std), biases 0, gains of norms 1."""
    for name in names:
        owner, leaf = _owner(model, name)
        tensor = getattr(owner, leaf)
        if tensor.dim() > 1:
            nn.init.normal_(tensor, std=std)
        else:
            nn.init.constant_(tensor, float(isinstance(owner, (nn.LayerNorm, nn.RMSNorm)) and leaf == "weight"))


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    module, _, leaf = name.rpartition(".")
    return model.get_submodule(module), leaf


def common_type(found: Mapping[str, Tensor]) -> torch.dtype:
    """The narrowest type that holds all of a file's weights exactly."""
    kinds: dict[torch.dtype, str] = {}
    for name in found:
        tensor = found[name]
        if tensor.is_floating_point():
            kinds.setdefault(tensor.dtype, name)
    if not kinds:
        raise InvalidInput("the file holds no weights")
    for kind, name in kinds.items():
        _check_kind(name, kind)
    return reduce(torch.promote_types, kinds)


def _check_kind(name: str, kind: torch.dtype) -> None:
    if kind not in KINDS:
        raise Unsupported(f"{name}: weights of {kind} are not read; convert them to float16 or wider")


__all__ = ["KINDS", "common_type", "draw", "put", "unfilled"]
