"""Causal mechanisms in an encoder, by reading both ways.

Some mechanisms are causal only, and the arena's models are encoders. Half of the heads then read from left to right
and half from right to left, as in a bidirectional recurrent network, at the cost of one direction.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from longspan.attention.base import Attention, Cost, Extras, Supports
from longspan.attention.config import AttentionConfig
from longspan.attention.registry import find
from longspan.errors import InvalidOption
from longspan.nn.recurrent import reversal
from longspan.shapes import Keys, Output, Queries, Values, Weights


class BidirectionalAttention(Attention):
    """Two causal mechanisms of one kind that share out the heads; the second reads the real tokens in reverse order.

    Recurrences that are not divided by the sum of their weights (retention, gated linear attention) need each head's
    output normed by whoever uses them; that is done here, without weights.
    """

    name = "both_ways"
    paper = "Schuster & Paliwal 1997"
    survey_class = ()
    supports = Supports(dropout=True, map=False)

    def __init__(self, forward: Attention, backward: Attention) -> None:
        super().__init__(replace(forward.shape, heads=forward.shape.heads + backward.shape.heads))
        if any(stream.kind != "hidden" for stream in forward.streams):
            raise InvalidOption(f"{forward.name} reads streams of which it is not known how they are reversed")
        self.left, self.right = forward, backward
        self.streams, self.projects = forward.streams, forward.projects
        self.order, self.exponent = forward.order, forward.exponent
        self.normed = "RC" in forward.survey_class

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        own, mask = self.left.shape.heads, extras.key_mask
        real = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device) if mask is None else mask
        order = reversal(real)[:, None, :, None]
        ahead = self.left(*(x[:, :own] for x in (q, k, v)), key_mask=mask, streams=extras.streams)
        streams = {name: _ordered(x, order[:, 0]) for name, x in extras.streams.items()}
        turned = (_ordered(x[:, own:], order) for x in (q, k, v))
        back = _ordered(self.right(*turned, key_mask=mask, streams=streams), order)
        found = torch.cat([ahead, back], 1)
        return layer_norm(found, found.shape[-1:]) if self.normed else found

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        raise NotImplementedError("each half has a definition, in its own order")

    def cost(self, queries: int, keys: int) -> Cost:
        one, other = self.left.cost(queries, keys), self.right.cost(queries, keys)
        return Cost(one.flops + other.flops, one.floats + other.floats)


def _ordered(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(-2, order.expand(*x.shape[:-2], *order.shape[-2:]).expand_as(x))


class BidirectionalConfig(AttentionConfig):
    """A causal mechanism by name, for an encoder."""

    def build(
        self, *, heads: int, head_dim: int, causal: bool, max_length: int | None, dropout: float
    ) -> BidirectionalAttention:
        if heads < 2:
            raise InvalidOption(f"{self.name} reads both ways with half of its heads each: give two at least, not 1")
        halves = [
            super(BidirectionalConfig, self).build(
                heads=part, head_dim=head_dim, causal=True, max_length=max_length, dropout=dropout
            )
            for part in (heads - heads // 2, heads // 2)
        ]
        return BidirectionalAttention(*halves)

    def plain(self) -> Any:
        return {**super().plain(), "both_ways": True}


def setting(name: str, options: dict[str, Any]) -> AttentionConfig:
    """The mechanism for an encoder: as it is, or both ways where it is causal only."""
    made: type[AttentionConfig] = AttentionConfig if find(name).supports.bidirectional else BidirectionalConfig
    return made(name, **options)


__all__ = ["BidirectionalAttention", "BidirectionalConfig", "setting"]
