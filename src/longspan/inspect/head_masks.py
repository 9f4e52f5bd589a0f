"""Switch attention heads off, or put a gate on each of them.

A head is switched off by setting its output before the output projection (W_O) to 0. It works for every mechanism and
every model whose layers are `MultiHead`, in parallel passes and step by step.

>>> with longspan.inspect.masked_heads(model, {0: [2], 5: [0, 1]}):
...     model(ids)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.block import Block
from longspan.nn.multihead import MultiHead
from longspan.nn.reversible_body import ReversibleBody
from longspan.nn.stack import Body, Stack

Side = Literal["encoder", "decoder"]
Kind = Literal["self", "cross"]
Gate = Callable[[int, Tensor], Tensor]  # (layer, heads before W_O) -> the same, changed


@dataclass(frozen=True)
class AttentionGroup:
    """The attention layers of one kind on one side of a model, bottom up; shared layers appear once for each use."""

    side: Side
    kind: Kind
    body: Body
    layers: tuple[MultiHead, ...]

    @property
    def name(self) -> str:
        return self.side if self.kind == "self" else "cross"

    @property
    def heads(self) -> int:
        return self.layers[0].mechanism.shape.heads

    @property
    def causal(self) -> bool:
        return self.layers[0].mechanism.causal


def attention_groups(model: nn.Module) -> list[AttentionGroup]:
    """The groups of attention layers of a model: one, or three for an encoder–decoder (encoder, decoder, cross)."""
    groups: list[AttentionGroup] = []
    for body in (module for module in model.modules() if isinstance(module, Body)):
        layers = _layers(body)
        if not layers:
            continue
        side: Side = "decoder" if layers[0][0].mechanism.causal else "encoder"
        groups.append(AttentionGroup(side, "self", body, tuple(mixer for mixer, _ in layers)))
        crosses = tuple(cross for _, cross in layers if cross is not None)
        if crosses:
            groups.append(AttentionGroup(side, "cross", body, crosses))
    return groups


def _layers(body: Body) -> list[tuple[MultiHead, MultiHead | None]]:
    """The self-attention and cross-attention of each layer."""
    if isinstance(body, ReversibleBody):
        return [(mix.mixer, None) for mix, _ in body.pairs()]
    blocks = body.layers() if isinstance(body, Stack) else (m for m in body.modules() if isinstance(m, Block))
    return [(block.mixer, block.cross) for block in blocks]


def find_group(model: nn.Module, side: str | None = None, kind: str = "self") -> AttentionGroup:
    """The group that is meant; a model with several needs `side`."""
    groups = attention_groups(model)
    if not groups:
        name = getattr(model, "name", type(model).__name__)
        raise Unsupported(f"{name} has no attention heads; give a model with attention layers")
    fitting = [group for group in groups if group.kind == kind and side in (None, group.side)]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(f"side={group.side!r} kind={group.kind!r}" for group in groups)
    raise InvalidOption(f"expected one of {known}; got side={side!r} kind={kind!r}")


@contextmanager
def masked_heads(
    model: nn.Module, heads: Mapping[int, Sequence[int]], *, side: str | None = None, kind: str = "self"
) -> Iterator[None]:
    """Switches heads off: `{layer: [heads]}`, both counted from 0.

    An encoder–decoder needs `side` ("encoder" or "decoder"); `kind="cross"` is its cross-attention.
    """
    group = find_group(model, side, kind)
    _check(group, heads)
    widths = {layer: group.layers[layer].widths["v"] for layer in heads}

    def silence(layer: int, x: Tensor) -> Tensor:
        if layer not in heads:
            return x
        keep = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
        for head in heads[layer]:
            keep[head * widths[layer] : (head + 1) * widths[layer]] = 0
        return x * keep

    with gated(group, silence):
        yield


def _check(group: AttentionGroup, heads: Mapping[int, Sequence[int]]) -> None:
    for layer, chosen in heads.items():
        if not 0 <= layer < len(group.layers):
            raise InvalidInput(f"the {group.name} has layers 0 to {len(group.layers) - 1}, not {layer}")
        most = group.layers[layer].mechanism.shape.heads
        for head in chosen:
            if not 0 <= head < most:
                raise InvalidInput(f"layer {layer} has heads 0 to {most - 1}, not {head}")


@contextmanager
def gated(group: AttentionGroup, gate: Gate) -> Iterator[None]:
    """Passes what W_O reads in each layer of a group, (batch, length, heads·value_dim), through `gate` first."""
    uses: dict[MultiHead, list[int]] = {}
    for layer, mixer in enumerate(group.layers):
        uses.setdefault(mixer, []).append(layer)
    calls = dict.fromkeys(uses, 0)

    def begin(_: nn.Module, args: Any) -> None:
        calls.update(dict.fromkeys(uses, 0))

    def hook(mixer: MultiHead) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
        def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            # A shared layer is called once for each of its uses, in order.
            layer = uses[mixer][calls[mixer] % len(uses[mixer])]
            calls[mixer] += 1
            return (gate(layer, args[0]), *args[1:])

        return before

    handles = [group.body.register_forward_pre_hook(begin)]
    handles += [mixer.out.register_forward_pre_hook(hook(mixer)) for mixer in uses]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


__all__ = ["AttentionGroup", "attention_groups", "find_group", "gated", "masked_heads"]
