"""Build a model that a file describes, if the file is large enough to hold it.

A configuration is text: a billion layers cost as many letters as ten. What the model would take is compared with what
its weights are, before the memory is taken.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.errors import InvalidInput

# A model may be wider in memory than in its file (float16 to float32, ties that are broken) and has tables beside it.
TIMES, BESIDE = 8, 1 << 28
RANGES = ("arange", "arange.start", "arange.start_step", "linspace", "randperm", "randperm.generator")
LAYERS = 1024  # that may share their weights, so that the file does not show them


class _Allowance(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]  # torch has no types here
    """Counts the bytes of new tensors, and refuses the one that is too much before it is made."""

    def __init__(self, most: int, where: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.most, self.left, self.where = most, most, where

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(each, torch.Tensor) for each in args):
            kind = kwargs.get("dtype") or torch.get_default_dtype()
            self.left -= _numbers(func.name(), args) * kind.itemsize
            if self.left < 0:
                raise InvalidInput(
                    f"{self.where} describes a model of more than {self.most:,} bytes, far more than its weights have"
                )
        return func(*args, **kwargs)


def _numbers(name: str, args: tuple[Any, ...]) -> int:
    """How many numbers a function makes that is given no tensor: those of a shape, or of a range."""
    for each in args:
        if isinstance(each, (list, tuple)):
            return math.prod(each) if all(isinstance(size, int) for size in each) else 0
    if name.removeprefix("aten::") in RANGES:
        return max((int(abs(each)) for each in args if isinstance(each, (int, float))), default=0)
    return 0


@contextmanager
def allowance(weights: int, where: Path | str) -> Iterator[None]:
    """What is built inside may take some times the bytes of its weights and no more."""
    with _Allowance(TIMES * weights + BESIDE, str(where)):
        yield


def check_layers(values: Mapping[str, Any], tensors: int, where: Path | str) -> None:
    """Refuses numbers of layers, by the names of their options, that so many tensors cannot hold."""
    for name, value in values.items():
        if isinstance(value, int) and value > max(LAYERS, tensors):
            raise InvalidInput(f"{where}: {name} is {value}, and the file has {tensors} tensors for all of them")


def counts(options: Any) -> dict[str, Any]:
    """The options that say how many layers, or groups of them, a model has."""
    return {name: value for name, value in vars(options).items() if name.endswith("layers") or name == "groups"}


__all__ = ["allowance", "check_layers", "counts"]
