"""Autocast and dtypes, for operations that choose their precision themselves."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain

import torch
from torch import Tensor, nn


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast rounds to on this device; None if it is off, or if the device has none (`meta`)."""
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def state_type(
    module: nn.Module, dtype: torch.dtype | None, device: torch.device | str | None
) -> tuple[torch.dtype, torch.device]:
    """The dtype and device of a new decoding state: the requested ones, or those of the module's parameters."""
    like = next((x for x in chain(module.parameters(), module.buffers()) if x.is_floating_point()), None)
    like = torch.empty(0) if like is None else like
    return like.dtype if dtype is None else dtype, like.device if device is None else torch.device(device)


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Switch autocast off: it would round inside operations that choose their precision themselves."""
    kind = like.device.type
    return nullcontext() if autocast_type(like.device) is None else torch.autocast(kind, enabled=False)


def unify_dtypes(
    q: Tensor, k: Tensor, v: Tensor, streams: Mapping[str, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor, Mapping[str, Tensor] | None]:
    """Heads and streams in one dtype under autocast, which rounds some and not others; unchanged without autocast.

    It is autocast's dtype if any of q, k, v has it. Mechanisms cast their weights to the dtype of the heads.
    """
    half = autocast_type(q.device)
    if half is None:
        return q, k, v, streams
    dtype = half if half in (q.dtype, k.dtype, v.dtype) else q.dtype
    inputs = {id(x): x for x in (q, k, v, *(streams or {}).values())}  # the same tensor may be passed several times
    cast = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
    cast_streams = None if streams is None else {name: cast[id(x)] for name, x in streams.items()}
    return cast[id(q)], cast[id(k)], cast[id(v)], cast_streams


def no_float16(like: Tensor) -> bool:
    """Whether autocast asks for float16 on the CPU, where torch's recurrent layers do not support it."""
    return like.is_cpu and autocast_type(like.device) == torch.float16


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x cast as autocast casts inputs: float64 and tensors that are not floating-point stay unchanged."""
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


__all__ = ["autocast_type", "full_precision", "no_float16", "rounded", "state_type", "unify_dtypes"]
