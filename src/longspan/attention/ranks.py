"""Any number of leading dimensions, as `nn.Linear` and `torch.matmul` take them.

The code of mechanisms and layers is written for one batch dimension. `any_rank` wraps their public methods: inputs of
that rank pass through; for any other rank, the leading dimensions are flattened to one batch and restored on the
output. Masks and ids (…, length) broadcast over the leading dimensions.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from longspan.errors import InvalidInput

P = ParamSpec("P")
R = TypeVar("R")

STREAM_DIMENSIONS = {"heads": 3, "queries": 3, "hidden": 2, "mask": 1, "ids": 1}  # without the leading ones
# Inputs besides the first one, which has `kept` dimensions: those with as many, and those with a value per position.
LIKE_FIRST = ("k", "v", "context")
PER_POSITION = ("key_mask", "positions")


def any_rank(kept: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Lets a method take any number of leading dimensions; its first argument has `kept` dimensions after them."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        _, first, *names = inspect.signature(method).parameters

        @wraps(method)
        def call(*args: P.args, **given: P.kwargs) -> R:
            x: Any = args[1] if len(args) > 1 else given.get(first)
            if not isinstance(x, Tensor) or x.dim() == kept + 1 or x.dim() < kept:
                return method(*args, **given)
            inputs = {**dict(zip(names, args[2:])), **{name: given[name] for name in given if name != first}}
            leading = x.shape[: x.dim() - kept]
            flat = {name: _flatten_input(args[0], name, value, leading, kept, first) for name, value in inputs.items()}
            out: Any = method(args[0], _flatten(x, kept), **flat)  # type: ignore[arg-type]
            if isinstance(out, tuple):  # output and state
                return (_restore(out[0], leading), *out[1:])  # type: ignore[return-value]
            restored: Any = _restore(out, leading) if isinstance(out, Tensor) else out
            return restored  # type: ignore[no-any-return]

        return call

    return decorate


def broadcast_positions(name: str, x: Tensor, leading: tuple[int, ...]) -> Tensor:
    """A value per position (…, length), expanded over the leading dimensions; other shapes are an error."""
    own = x.shape[:-1]
    if own == leading:
        return x
    if not x.dim() or len(own) > len(leading) or any(a not in (1, b) for a, b in zip(own[::-1], leading[::-1])):
        raise InvalidInput(f"{name} of shape {tuple(x.shape)} does not broadcast over the batch {tuple(leading)}")
    return x.expand(*leading, x.shape[-1])


def _flatten_input(module: Any, name: str, value: Any, leading: torch.Size, kept: int, first: str) -> Any:
    if name == "streams" and isinstance(value, Mapping):
        known = {stream.name: stream.kind for stream in getattr(module, "mechanism", module).streams}
        return {key: _flatten_stream(key, known.get(key), item, leading, first) for key, item in value.items()}
    if not isinstance(value, Tensor):
        return value
    if name in PER_POSITION:
        return _flatten(broadcast_positions(name, value, leading), 1)
    return _flatten_alike(name, value, leading, kept, first) if name in LIKE_FIRST else value


def _flatten_stream(name: str, kind: str | None, x: Tensor, leading: torch.Size, first: str) -> Tensor:
    if kind is None:  # refused later, by name
        return x
    if kind in ("mask", "ids"):
        return _flatten(broadcast_positions(name, x, leading), 1)
    return _flatten_alike(name, x, leading, STREAM_DIMENSIONS[kind], first)


def _flatten_alike(name: str, x: Tensor, leading: torch.Size, kept: int, first: str) -> Tensor:
    own = x.shape[: max(0, x.dim() - kept)]
    if x.dim() < kept or own != leading:
        raise InvalidInput(
            f"{first} has the leading dimensions {tuple(leading)} and {name} {tuple(own)}; they must be equal"
        )
    return _flatten(x, kept)


def _flatten(x: Tensor, kept: int) -> Tensor:
    return x[None] if x.dim() == kept else x.flatten(0, x.dim() - kept - 1)


def _restore(x: Tensor, leading: torch.Size) -> Tensor:
    return x.unflatten(0, leading) if len(leading) else x[0]


__all__ = ["any_rank", "broadcast_positions"]
