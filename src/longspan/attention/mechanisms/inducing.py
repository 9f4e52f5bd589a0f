"""Attention through inducing points: a few learned points read the keys, and queries read the points (Set Transformer).

Lee et al. 2019, section 3.1: ISAB(X) = MAB(X, H) with H = MAB(I, X), for m learned points I. A MAB is multi-head
attention inside residual connections, norms and a feed-forward layer. Without those, this mechanism remains:

    Multihead(X, H, H)  with  H = Multihead(I, X, X),

two nested attentions that cost n·m each. `nn.MultiHead` projects X to q, k and v. Learned here are the points, as
queries of the inner attention, and the two matrices that project H to keys and values for all heads; they include the
output projection of the inner attention. `nn.set_transformer.ISAB` is the paper's whole block, with its residuals.

The mechanism ignores order: output rows follow the queries, and permuting the keys changes nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Dense
from longspan.config import option
from longspan.errors import InvalidInput
from longspan.shapes import Defined, Keys, Output, Queries, Values


class InducingAttention(Attention):
    name = "inducing"
    paper = "Lee et al. 2019"
    survey_class = ("M",)
    order = "n·points"
    exponent = 1.0
    equal_widths = "its points read keys and values into one summary, which queries then compare themselves with"
    # No map: the queries are compared with keys that depend on the values.
    supports = Supports(cross=True, grouped=True, map=False)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        points: int = option(32, "inducing points", low=1)
        scale: float | None = option(
            None, "factor on the scores; 1/sqrt(heads · head_dim), as in the paper, unless given"
        )

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        width = shape.heads * shape.head_dim
        self.points = nn.Parameter(torch.empty(self.options.points, width))  # queries of all heads, concatenated
        self.summary_keys = nn.Parameter(torch.empty(width, width))
        self.summary_values = nn.Parameter(torch.empty(width, width))
        for parameter in (self.points, self.summary_keys, self.summary_values):
            nn.init.xavier_uniform_(parameter)
        self.scale = width**-0.5 if self.options.scale is None else self.options.scale

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Defined:
        """The weight of each point for each query."""
        summary = self._summary_by_definition(k, extras)
        keys = self._split(summary @ self.summary_keys.T)
        scores = torch.einsum("bhid,bhmd->bhim", q, keys) * self.scale
        alive = torch.ones(q.shape[0], 1, dtype=torch.bool, device=q.device)
        if extras.key_mask is not None:
            alive = extras.key_mask.any(dim=1, keepdim=True)  # points that have read nothing give nothing
        return masked_softmax(scores, alive[:, None, None, :].expand_as(scores))

    def apply_weights(self, weights: Tensor, v: Values, extras: Extras) -> Output:
        assert extras.k is not None
        return weights @ self._split(self._summary_by_definition(extras.k, extras) @ self.summary_values.T)

    def _summary_by_definition(self, k: Tensor, extras: Extras) -> Tensor:
        """H, (batch, points, width)"""
        assert extras.v is not None
        self._check_width(extras.v)
        points = self.points.unflatten(1, (self.shape.heads, -1))
        scores = torch.einsum("mhd,bhjd->bhmj", points, k) * self.scale
        keep = torch.ones_like(scores, dtype=torch.bool)
        if extras.key_mask is not None:
            keep = keep & extras.key_mask[:, None, None, :]
        return torch.einsum("bhmj,bhjd->bmhd", masked_softmax(scores, keep), extras.v).flatten(2)

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        self._check_width(v)
        points = self._split(self.points[None].to(k.dtype)).expand(k.shape[0], -1, -1, -1)
        read = joint(points, [KeySource(Dense(), k, v, extras.key_mask)], scale=self.scale)
        summary = read.transpose(1, 2).flatten(2)
        # Padding alone gives a summary of 0 and so values of 0: such rows need no special case.
        keys = self._split(linear(summary, self.summary_keys.to(k.dtype)))
        values = self._split(linear(summary, self.summary_values.to(k.dtype)))
        return joint(q, [KeySource(Dense(), keys, values)], scale=self.scale)

    def _split(self, x: Tensor) -> Tensor:
        """(batch, length, width) -> (batch, heads, length, head_dim)"""
        heads: Tensor = x.unflatten(2, (self.shape.heads, -1))
        return heads.transpose(1, 2)

    def _check_width(self, v: Tensor) -> None:
        if v.shape[-1] != self.shape.head_dim:
            raise InvalidInput(
                f"v must be as wide as head_dim {self.shape.head_dim} to be summarised, not {v.shape[-1]}"
            )

    def cost(self, queries: int, keys: int) -> Cost:
        heads, head_dim, points = self.shape.heads, self.shape.head_dim, self.options.points
        width = heads * head_dim
        flops = 4 * points * (queries + keys) * width + 4 * points * width**2
        # The output and log-sum-exp of both attentions, and the summary's keys and values.
        return Cost(flops, (queries + points) * (width + heads) + 2 * points * width)
