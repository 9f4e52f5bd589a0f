"""Refuse configurations that describe a model far larger than its weight file, before memory is allocated.

A configuration is text: a billion layers take as few letters as ten. A damaged or hostile file must not exhaust memory.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.errors import InvalidInput

# A model may be larger in memory than in its file (float16 to float32, untied weights), and it has other tables.
TIMES, BESIDE = 8, 1 << 28
RANGES = ("arange", "arange.start", "arange.start_step", "linspace", "randperm", "randperm.generator")
LAYERS = 1024  # layers may share weights, so that the file does not show their number


class _Allowance(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]  # torch has no types here
    """Counts the bytes of new tensors, and refuses the one that exceeds the allowance before it is made."""

    def __init__(self, most: int, where: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.most, self.left, self.where = most, most, where

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(argument, torch.Tensor) for argument in args):
            kind = kwargs.get("dtype") or torch.get_default_dtype()
            self.left -= _numbers(func.name(), args) * kind.itemsize
            if self.left < 0:
                raise InvalidInput(
                    f"{self.where} describes a model of more than {self.most:,} bytes, far more than its weights have"
                )
        return func(*args, **kwargs)


def _numbers(name: str, args: tuple[Any, ...]) -> int:
    """How many numbers a function creates from a shape or a range."""
    for argument in args:
        if isinstance(argument, (list, tuple)):
            return math.prod(argument) if all(isinstance(size, int) for size in argument) else 0
    if name.removeprefix("aten::") in RANGES:
        return max((int(abs(bound)) for bound in args if isinstance(bound, (int, float))), default=0)
    return 0


@contextmanager
def allowance(weights: int, where: Path | str) -> Iterator[None]:
    """Inside the block, new tensors may take at most a few times the bytes of the weights."""
    with _Allowance(TIMES * weights + BESIDE, str(where)):
        yield


def check_layers(values: Mapping[str, Any], tensors: int, where: Path | str) -> None:
    """Refuses numbers of layers (options by name) that the given number of tensors cannot hold."""
    for name, value in values.items():
        if isinstance(value, int) and value > max(LAYERS, tensors):
            raise InvalidInput(f"{where}: {name} is {value}, and the file has {tensors} tensors for all of them")


def counts(options: Any) -> dict[str, Any]:
    """The options that set the number of layers, or of groups of layers."""
    return {name: value for name, value in vars(options).items() if name.endswith("layers") or name == "groups"}


__all__ = ["allowance", "check_layers", "counts"]
