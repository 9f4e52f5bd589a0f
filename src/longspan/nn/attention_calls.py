"""Shows each call of an attention mechanism inside a model to a visitor, layer by layer, and keeps nothing itself.

`recorder.recording` keeps every map: layers · heads · n² numbers. Here the visitor receives the projected heads of one
layer at a time, and decides what to compute from them and what to keep.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.attention.map_columns import measure_columns
from longspan.attention.map_factors import MapFactors
from longspan.recompute import deciding

CHECKED = 32  # rows of a map that are compared, about
AGREE = 1e-3  # most by which factors may differ from the measured map, relative to its largest weight


@dataclass(frozen=True)
class AttentionCall:
    """What a mechanism received: heads (batch, heads, length, width) after rotation, and its optional inputs."""

    path: str  # of the mechanism inside the model: "encoder.blocks.0.mixer.mechanism"
    mechanism: Attention
    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None
    bias: Tensor | None
    streams: Mapping[str, Tensor] | None

    @property
    def extras(self) -> dict[str, Any]:
        return {"key_mask": self.key_mask, "bias": self.bias, "streams": self.streams}

    def columns(self) -> Iterator[tuple[int, Tensor]]:
        """The measured map, (first key, the columns of the next keys)."""
        return self.mechanism.map_columns(self.q, self.k, **self.extras)

    def factors(self) -> MapFactors | None:
        """The map as factors, if the mechanism has them and they agree with measured columns, first and middle."""
        factors = self.mechanism.map_factors(self.q, self.k, **self.extras) if self.mechanism.supports.map else None
        if factors is None:
            return None
        (queries, keys), width = (self.q.shape[2], self.k.shape[2]), self.mechanism.shape.value_dim
        some = torch.arange(0, queries, max(1, queries // CHECKED), device=self.q.device)
        rows, masks = factors.rows(some), {"key_mask": self.key_mask, "bias": self.bias}
        for begin in {0, keys // 2 // width * width}:
            measured = measure_columns(self.mechanism, self.q, self.k, begin, self.streams, **masks)
            error = (rows[..., begin : begin + measured.shape[-1]] - measured[:, :, some]).abs().amax()
            if not bool(error <= AGREE * measured.abs().amax().clamp_min(1.0)):
                return None
        return factors


@contextmanager
def visiting(module: nn.Module, visit: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Calls `visit` before each call of a mechanism inside `module`, in order, without gradients.

    The visitor may call the mechanism: calls of its own are not shown to it. Outputs do not change.

    >>> with visiting(model, lambda call: print(call.path, call.q.shape)):
    ...     model(ids)
    """
    busy = False

    def hook(path: str) -> Any:
        def before(mechanism: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            nonlocal busy
            assert isinstance(mechanism, Attention)
            if busy:
                return
            q, k, v = (args[i] if i < len(args) else given[name] for i, name in enumerate(("q", "k", "v")))
            extras = (given.get(name) for name in ("key_mask", "bias", "streams"))
            token = deciding.set(None)  # decisions made for the visitor must not reach the backward pass
            busy = True
            try:
                with torch.no_grad():
                    visit(AttentionCall(path, mechanism, q, k, v, *extras))
            finally:
                busy = False
                deciding.reset(token)

        return before

    hooks = [
        child.register_forward_pre_hook(hook(path), with_kwargs=True)
        for path, child in module.named_modules()
        if isinstance(child, Attention)
    ]
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


__all__ = ["AttentionCall", "visiting"]
