"""Looking into a body while it works: the states after each layer, and the map of each attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from longspan.nn.block import Block
from longspan.nn.multihead import MultiHead
from longspan.nn.stack import Body


@dataclass
class Seen:
    """What was seen in the last pass, bottom up."""

    states: list[Tensor] = field(default_factory=list)  # what came in, then after each layer; the last one normed
    maps: list[Tensor] = field(default_factory=list)  # of self-attention, (batch, heads, queries, keys) each
    cross_maps: list[Tensor] = field(default_factory=list)  # of attention to another sequence


@contextmanager
def watch(body: Body, *, maps: bool = True) -> Iterator[Seen]:
    """Notes what passes through a stack of blocks, in its parallel form; maps take n² numbers each.

    >>> with watch(model.stack) as seen:
    ...     model(ids)
    >>> seen.states[-1], seen.maps[0]
    """
    seen, layers = Seen(), [module for module in body.modules() if isinstance(module, Block)]

    def enter(_: nn.Module, args: tuple[Any, ...]) -> None:
        seen.states[:], seen.maps[:], seen.cross_maps[:] = [args[0]], [], []

    def after(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        seen.states.append(out)

    def leave(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        seen.states[-1] = out

    def note(into: list[Tensor]) -> Any:
        def before(mixer: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            assert isinstance(mixer, MultiHead)
            with torch.no_grad():
                into.append(mixer.weights(*args, **given))

        return before

    hooks = [body.register_forward_pre_hook(enter), body.register_forward_hook(leave)]
    hooks += [block.register_forward_hook(after) for block in layers]
    # Blocks may share an attention, which is watched once and heard of at each of its turns.
    mixers = dict.fromkeys(block.mixer for block in layers) if maps else {}
    readers = dict.fromkeys(block.cross for block in layers if block.cross is not None) if maps else {}
    for module, into in [*((each, seen.maps) for each in mixers), *((each, seen.cross_maps) for each in readers)]:
        hooks.append(module.register_forward_pre_hook(note(into), with_kwargs=True))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


__all__ = ["Seen", "watch"]
