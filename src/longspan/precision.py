"""What autocast does at a place, for operations that choose their precision themselves."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain

import torch
from torch import Tensor, nn


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The type that autocast rounds to on this device; None where it is off, or the device has none (`meta`)."""
    kind = device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def state_type(
    module: nn.Module, dtype: torch.dtype | None, device: torch.device | str | None
) -> tuple[torch.dtype, torch.device]:
    """Of a state before the first token: as asked for, or else as the module's own numbers are."""
    own = next((x for x in chain(module.parameters(), module.buffers()) if x.is_floating_point()), None)
    own = torch.empty(0) if own is None else own
    return own.dtype if dtype is None else dtype, own.device if device is None else torch.device(device)


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Switches autocast off: it would round inside of operations that choose their precision themselves."""
    kind = like.device.type
    return nullcontext() if autocast_type(like.device) is None else torch.autocast(kind, enabled=False)


def alike(
    half: torch.dtype, q: Tensor, k: Tensor, v: Tensor, streams: Mapping[str, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor] | None]:
    """Heads and streams of one type, as autocast leaves some rounded and some not: rounded where any of the heads is.

    A mechanism then brings its weights to the type of the heads where they meet.
    """
    dtype = half if half in (q.dtype, k.dtype, v.dtype) else q.dtype
    given = {id(x): x for x in (q, k, v, *(streams or {}).values())}  # one tensor may stand in several places
    made = {key: x.to(dtype) if x.is_floating_point() else x for key, x in given.items()}
    beside = None if streams is None else {name: made[id(x)] for name, x in streams.items()}
    return made[id(q)], made[id(k)], made[id(v)], beside


def no_float16(like: Tensor) -> bool:
    """Whether autocast asks for recurrent layers in float16 on the CPU, which torch does not have there."""
    return like.is_cpu and autocast_type(like.device) == torch.float16


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As autocast rounds an input: float64 and whatever is no number stay as they are."""
    return x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x


__all__ = ["alike", "autocast_type", "full_precision", "no_float16", "rounded", "state_type"]
