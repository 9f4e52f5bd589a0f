"""Looking into a body while it works: the states after each layer, and the map of each attention."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from longspan.nn.block import Block
from longspan.nn.multihead import MultiHead
from longspan.nn.reversible_body import ReversibleBody
from longspan.nn.stack import Body
from longspan.recompute import deciding


@dataclass
class Recording:
    """What was seen in the last pass, bottom up."""

    states: list[Tensor] = field(default_factory=list)  # what came in, then after each layer; the last one normed
    maps: list[Tensor] = field(default_factory=list)  # of self-attention, (batch, heads, queries, keys) each
    cross_maps: list[Tensor] = field(default_factory=list)  # of attention to another sequence
    # Of reversible layers, of which `states` has the second stream: both, as they came in and after each layer.
    streams: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def clear(self) -> None:
        for each in (self.states, self.maps, self.cross_maps, self.streams):
            each.clear()


@contextmanager
def recording(body: Body, *, maps: bool = True) -> Iterator[Recording]:
    """Notes what passes through a stack of blocks, in its parallel form; maps take n² numbers each.

    >>> with watch(model.stack) as seen:
    ...     model(ids)
    >>> seen.states[-1], seen.maps[0]
    """
    seen = Recording()
    inside = False  # reversible layers run once more in the backward pass, which is not looked at

    def enter(_: nn.Module, args: tuple[Any, ...]) -> None:
        nonlocal inside
        inside = True
        seen.clear()
        seen.states.append(args[0])
        if isinstance(body, ReversibleBody):
            seen.streams.append((args[0], args[0]))

    def after(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        seen.states.append(out)

    def changed(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        if inside:  # the first stream came in, and what is to be added to the second comes out
            seen.streams.append((args[0], seen.streams[-1][1] + out))
            seen.states.append(seen.streams[-1][1])

    def leave(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        nonlocal inside
        inside = False
        seen.states[-1] = out

    def note(into: list[Tensor]) -> Any:
        def before(mixer: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            assert isinstance(mixer, MultiHead)
            if not inside:
                return
            token = deciding.set(None)  # what is decided for the map is not for the backward pass
            try:
                with torch.no_grad():
                    into.append(mixer.weights(*args, **given))
            finally:
                deciding.reset(token)

        return before

    hooks = [body.register_forward_pre_hook(enter), body.register_forward_hook(leave)]
    # Blocks may share an attention, which is watched once and heard of at each of its turns.
    mixers: dict[nn.Module, list[Tensor]] = {}
    if isinstance(body, ReversibleBody):
        for mix, change in body.pairs():
            hooks.append(change.register_forward_hook(changed))
            mixers[mix.mixer] = seen.maps
    for block in body.modules():
        if isinstance(block, Block):
            hooks.append(block.register_forward_hook(after))
            mixers[block.mixer] = seen.maps
            if block.cross is not None:
                mixers[block.cross] = seen.cross_maps
    for mixer, into in mixers.items() if maps else ():
        hooks.append(mixer.register_forward_pre_hook(note(into), with_kwargs=True))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


__all__ = ["Recording", "recording"]
