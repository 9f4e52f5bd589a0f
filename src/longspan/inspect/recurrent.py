"""Attention outside the mechanisms: alignments of recurrent decoders, and Transformer-XL's memory.

Both come in pieces: an alignment step by step, a memory segment by segment. The pieces of one layer follow each other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from longspan.inspect.capture import Watcher
from longspan.inspect.module_builder import ModuleBuilder
from longspan.nn.alignment import Alignment
from longspan.nn.relative_multihead import RelativeAttention

ALIGNMENT = "The alignment of the recurrent decoder: how much of each source state its context vector holds."
MEMORY = "The softmax weights over the segment up to the token and the memory of earlier segments."
COMPRESSED = " Weights on compressed memories are not drawn, so rows that read them sum to less than 1."


@contextmanager
def watch_alignments(model: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Records the weights that each `Alignment` returns."""
    rows: dict[nn.Module, list[Tensor]] = {}

    def after(module: nn.Module, args: Any, out: tuple[Tensor, Tensor]) -> None:
        rows.setdefault(module, []).append(out[1].detach())

    hooks = [each.register_forward_hook(after) for each in model.modules() if isinstance(each, Alignment)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for module, parts in rows.items():
        assert isinstance(module, Alignment)
        weights = torch.cat(parts, 1)[:1]  # (1, target, source)
        record = watcher.begin(
            "decoder",
            "cross",
            (weights.shape[1], weights.shape[2]),
            mechanism=f"alignment ({module.score})",
            options={"score": module.score, "reach": module.reach, "radius": module.radius},
            causal=False,
            standing="map",
            sentence=ALIGNMENT,
        )
        if record is not None:
            builder = watcher.builder(record, (1, weights.shape[1], weights.shape[2]))
            builder.add(0, 0, weights)
            watcher.finish(builder, {})


class _Segments:
    """The maps of one `RelativeAttention`, measured segment by segment."""

    def __init__(self, watcher: Watcher, module: RelativeAttention, options: Any) -> None:
        self.watcher, self.module, self.options = watcher, module, options
        self.builder: ModuleBuilder | None = None
        self.read, self.row, self.open = module.read, 0, False

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        with torch.no_grad():
            self._measure(q, k, *rest)
        return self.read(q, k, v, *rest)

    def _measure(self, q: Tensor, k: Tensor, *rest: Any) -> None:
        if not self.open:
            self._begin(q.shape[1])
        new, builder = q.shape[2], self.builder
        if builder is not None:
            remembered = min(self.row, getattr(self.options, "memory", self.row))
            slots = k.shape[2] - remembered - new  # compressed memories stand before the others
            first, width = self.row - remembered, k.shape[3]
            for begin in range(slots, k.shape[2], width):
                count = min(width, k.shape[2] - begin)
                values = torch.zeros(k.shape[2], width, dtype=k.dtype)
                values[begin : begin + count].fill_diagonal_(1.0)
                block = self.read(q, k, values.expand_as(k), *rest)[0, :, :, :count]
                builder.add(self.row, first + begin - slots, block)
        self.row += new
        if self.row >= self._length():
            self._finish()

    def _length(self) -> int:
        return len(self.watcher.axes[self.watcher.sides["decoder"]])

    def _begin(self, heads: int) -> None:
        length = self._length()
        compressed = hasattr(self.options, "slots")
        record = self.watcher.begin(
            "decoder",
            "self",
            (length, length),
            mechanism="relative",
            options={name: getattr(self.options, name, None) for name in ("segment", "memory")},
            causal=True,
            standing="map",
            sentence=MEMORY + (COMPRESSED if compressed else ""),
        )
        self.builder = None if record is None else self.watcher.builder(record, (heads, length, length))
        self.row, self.open = 0, True

    def _finish(self) -> None:
        if self.builder is not None:
            self.watcher.finish(self.builder, {})
        self.builder, self.open = None, False


@contextmanager
def watch_memories(model: nn.Module, watcher: Watcher) -> Iterator[None]:
    """Records what each `RelativeAttention` reads, its memory of earlier segments included."""
    layers = [module for module in model.modules() if isinstance(module, RelativeAttention)]
    for module in layers:
        module.read = _Segments(watcher, module, getattr(model, "options", None))  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        for module in layers:
            del module.read  # the method of the class is there again


__all__ = ["watch_alignments", "watch_memories"]
