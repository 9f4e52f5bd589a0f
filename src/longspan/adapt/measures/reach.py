"""How far a model reads: the window of one layer, and the receptive field of all of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from longspan.attention.base import Attention
from longspan.attention.mechanisms.window import WindowAttention
from longspan.attention.parts.sliding_window import SlidingWindow
from longspan.models.base import Model
from longspan.nn.block import Block
from longspan.nn.stack import Stack


@dataclass(frozen=True)
class Reach:
    """Distances in tokens; None: no limit."""

    window: int | None  # the longest window of the layers that have one
    field: int | None  # the sum over the layers: nothing further away can change an output
    sinks: int  # first tokens that every query reads besides


def reach_of(model: Model) -> Reach:
    """The borders of a model, from its mechanisms."""
    mechanisms = list(self_attention(model))
    windows = [reach for each in mechanisms if (reach := _window(each)) is not None]
    bounded = bool(mechanisms) and all(isinstance(each, WindowAttention) for each in mechanisms)
    sinks = max((int(getattr(each.options, "sinks", 0)) for each in mechanisms), default=0)
    return Reach(max(windows, default=None), sum(windows) if bounded else None, sinks)


def self_attention(model: nn.Module) -> Iterator[Attention]:
    """The mechanism of each block, bottom up; shared blocks count once for each layer that uses them."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    if len(stacks) == 1:
        yield from (block.mixer.mechanism for block in stacks[0].layers())
        return
    yield from (module.mixer.mechanism for module in model.modules() if isinstance(module, Block))


def _window(mechanism: Attention) -> int | None:
    if isinstance(mechanism, SlidingWindow):
        return mechanism.reach
    window = getattr(mechanism.options, "window", None)
    return window if isinstance(window, int) else None


__all__ = ["Reach", "reach_of", "self_attention"]
