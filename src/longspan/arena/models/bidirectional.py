"""Bidirectional attention from a causal mechanism, for encoders.

Some mechanisms are causal only, and the arena's models are encoders. Half of the heads then read from left to right and
half from right to left, as in a bidirectional recurrent network, at the cost of one direction.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from longspan import config
from longspan.attention import registry
from longspan.attention.base import Attention, Cost, Extras, Shape
from longspan.attention.config import AttentionConfig
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.nn.recurrent import reversal
from longspan.shapes import Keys, Output, Queries, Values, Weights


class BidirectionalAttention(Attention):
    """Two causal mechanisms of one kind that share the heads; the second reads the real tokens in reverse order.

    Recurrences whose weights do not sum to 1 (retention, gated linear attention) need a normalisation of each head's
    output, which their papers put into the block around them. Here it is a layer norm without weights.
    """

    name = "bidirectional"
    paper = "Schuster & Paliwal 1997"
    survey_class = ()

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        mechanism: str = option("retention", "name of the causal mechanism")
        inner: config.Options | None = option(None, "its options")

    def __init__(self, shape: Shape, options: Any = None, *, causal: bool = False, dropout: float = 0.0) -> None:
        options = self.Options() if options is None else options
        mechanism = registry.find(options.mechanism)
        if shape.heads < 2:
            raise InvalidOption(
                f"{mechanism.name} reads each direction with half of its heads: give two at least, not 1"
            )
        if any(stream.kind != "hidden" for stream in mechanism.streams):
            raise InvalidOption(f"{mechanism.name} cannot be bidirectional: it reads streams that cannot be reversed")
        normed = "RC" in mechanism.survey_class
        self.supports = replace(
            mechanism.supports,
            causal=False,
            bidirectional=True,
            streaming=False,
            left_padding=False,
            cross=False,
            bias=False,
            grouped=False,
            map=mechanism.supports.map and not normed,
        )
        self.streams, self.projects = mechanism.streams, mechanism.projects
        self.order, self.exponent = mechanism.order, mechanism.exponent
        super().__init__(shape, options, causal=causal, dropout=dropout)
        self.normed = normed
        self.left, self.right = (
            mechanism(replace(shape, heads=heads, key_heads=heads), options.inner, causal=True, dropout=dropout)
            for heads in (shape.heads - shape.heads // 2, shape.heads // 2)
        )

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        heads, order = self.left.shape.heads, _reversal(q, extras)
        ahead = self.left(*(x[:, :heads] for x in (q, k, v)), key_mask=extras.key_mask, streams=extras.streams)
        reversed_heads = (_reorder(x[:, heads:], order) for x in (q, k, v))
        back = self.right(*reversed_heads, key_mask=extras.key_mask, streams=_reorder_streams(extras, order))
        return self._norm(torch.cat([ahead, _reorder(back, order)], 1))

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        heads, order = self.left.shape.heads, _reversal(q, extras)
        assert extras.v is not None
        ahead = self.left.oracle(
            *(x[:, :heads] for x in (q, k, extras.v)), key_mask=extras.key_mask, streams=extras.streams
        )
        reversed_heads = (_reorder(x[:, heads:], order) for x in (q, k, extras.v))
        back = self.right.oracle(*reversed_heads, key_mask=extras.key_mask, streams=_reorder_streams(extras, order))
        # Back to the order of the text: first the rows (queries), then the columns (keys).
        back = _reorder(_reorder(back, order).transpose(-2, -1), order).transpose(-2, -1)
        return torch.cat([ahead, back], 1)

    def apply_weights(self, weights: Tensor, v: Values, extras: Extras) -> Output:
        return self._norm(weights @ v)

    def _norm(self, out: Output) -> Output:
        return layer_norm(out, out.shape[-1:]) if self.normed else out

    def cost(self, queries: int, keys: int) -> Cost:
        left, right = self.left.cost(queries, keys), self.right.cost(queries, keys)
        floats = left.floats + right.floats
        # q, k and v in reverse order; with gates also the hidden states. The output before it is put into order is
        # counted by mechanisms whose own backward pass needs it; those with gates and the hybrid do not.
        output = bool(self.streams) or self.options.mechanism == "window_linear"
        floats += self.right.shape.heads * (3 + output) * queries * self.shape.head_dim
        floats += len(self.streams) * queries * self.shape.heads * self.shape.head_dim
        if self.normed:  # the norm's input, means and deviations
            floats += self.shape.heads * queries * (self.shape.head_dim + 2)
        return Cost(left.flops + right.flops, floats)


def _reversal(q: Queries, extras: Extras) -> Tensor:
    """For each position, the one that takes its place in reverse order; padding stays. Its own inverse."""
    real = extras.key_mask
    if real is None:
        real = torch.ones(q.shape[0], q.shape[2], dtype=torch.bool, device=q.device)
    return reversal(real)


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """(batch, …, length, width) with its positions in another order."""
    index = order.reshape(order.shape[0], *(1,) * (x.dim() - 3), order.shape[1], 1)
    return x.gather(-2, index.expand_as(x))


def _reorder_streams(extras: Extras, order: Tensor) -> dict[str, Tensor]:
    return {name: _reorder(x, order) for name, x in extras.streams.items()}


class BidirectionalConfig(AttentionConfig):
    """A causal mechanism by name, made bidirectional."""

    def build(
        self,
        *,
        heads: int,
        head_dim: int,
        causal: bool,
        max_length: int | None,
        dropout: float,
        value_dim: int | None = None,
        key_heads: int | None = None,
    ) -> BidirectionalAttention:
        """The two attentions; fewer key heads are repeated for them."""
        mechanism = registry.find(self.name)
        dropout = dropout if self.dropout is None else self.dropout
        value_dim = head_dim if value_dim is None else value_dim
        shape = Shape(heads=heads, head_dim=head_dim, value_dim=value_dim, max_length=max_length)
        options = BidirectionalAttention.Options(
            mechanism=self.name, inner=mechanism.fit(self.all_options, self.options, shape)
        )
        return BidirectionalAttention(
            shape, options, causal=causal, dropout=dropout if mechanism.supports.dropout else 0.0
        )

    def plain(self) -> Any:
        return {**super().plain(), "both_ways": True}


def encoder_attention(name: str, options: dict[str, Any]) -> AttentionConfig:
    """The mechanism for an encoder: as it is, or made bidirectional if it is causal only."""
    config_class = AttentionConfig if registry.find(name).supports.bidirectional else BidirectionalConfig
    return config_class(name, **options)


__all__ = ["BidirectionalAttention", "BidirectionalConfig", "encoder_attention"]
