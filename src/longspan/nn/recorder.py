"""Records the hidden states after each layer and the map of each attention."""

from collections.abc import Callable, Iterator
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
    """The records of the last forward pass, bottom up."""

    states: list[Tensor] = field(default_factory=list)  # the input, then each layer's output; the last is normed
    maps: list[Tensor] = field(default_factory=list)  # self-attention, (batch, heads, queries, keys) each
    cross_maps: list[Tensor] = field(default_factory=list)  # cross-attention
    # Reversible layers: both streams, at the input and after each layer (`states` has the second one).
    streams: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def clear(self) -> None:
        for records in (self.states, self.maps, self.cross_maps, self.streams):
            records.clear()


@contextmanager
def recording(body: Body, *, maps: bool = True) -> Iterator[Recording]:
    """Records the parallel forward passes of a body; maps take n² numbers each.

    >>> with recording(model.stack) as seen:
    ...     model(ids)
    >>> seen.states[-1], seen.maps[0]
    """
    seen = Recording()
    inside = False  # reversible layers run again in the backward pass, which is not recorded

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
        if inside:  # input: the first stream; output: the change of the second
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
            token = deciding.set(None)  # decisions made for the map must not reach the backward pass
            try:
                with torch.no_grad():
                    into.append(mixer.weights(*args, **given))
            finally:
                deciding.reset(token)

        return before

    hooks = [body.register_forward_pre_hook(enter), body.register_forward_hook(leave)]
    # Blocks may share an attention: one hook records each of its calls.
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


def recorded_states(body: Body, run: Callable[[], object]) -> list[Tensor]:
    """The input of a body and the output of each of its layers during `run()`."""
    with recording(body, maps=False) as seen:
        run()
    return seen.states


__all__ = ["Recording", "recorded_states", "recording"]
