"""Transient-global attention (Guo et al. 2022, section 3.1.2): a window, and a summary of every block of tokens.

    out_i = softmax over the window of i and over all summaries s:  q_i·k_j + b(j - i),  q_i·k_s + c(s - block of i)

A summary is the normed sum of the states of a block; it passes through the same key and value layers as tokens do.
Summaries are computed anew in each layer and thrown away, so they cost no tokens. The last block has the tokens that
fill no block of their own; a text shorter than a block has no summary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.attention.base import Attention, masked_softmax, readable
from longspan.attention.kernels.multi_source_softmax import KeySource
from longspan.attention.layouts import Dense, offset_bias
from longspan.attention.mechanisms.window import WindowAttention
from longspan.attention.ranks import any_rank
from longspan.errors import InvalidOption, Unsupported
from longspan.nn.biases import RelativeBias
from longspan.nn.multihead import Context, MultiHead
from longspan.nn.norm import build_norm
from longspan.nn.positions import Positions
from longspan.shapes import Hidden, KeyMask, Weights


@dataclass(frozen=True)
class Summaries:
    """The summaries of a batch as keys and values, which of them exist, and their biases."""

    k: Tensor
    v: Tensor
    present: Tensor  # (batch, summaries)
    bias: Tensor  # (batch, heads, queries, summaries)


class TransientGlobalHeads(MultiHead):
    """`MultiHead` with a window whose queries also read a summary of each block of `block` tokens.

    `summary_position` gives the bias by the distance in blocks; all layers of a stack share it.
    """

    def __init__(
        self,
        width: int,
        window: Attention,
        *,
        block: int,
        summary_position: RelativeBias,
        norm: str = "rms",
        eps: float = 1e-6,
        **options: Any,
    ) -> None:
        if not isinstance(window, WindowAttention) or window.causal:
            raise InvalidOption(f"summaries of blocks go with a window that reads both ways, not with {window.name}")
        if block < 1:
            raise InvalidOption(f"a block has at least one token, not {block}")
        super().__init__(width, window, **options)
        self.block, self.summary_position = block, summary_position
        self.summary_norm = build_norm(norm, width, eps)

    @any_rank(2)
    def forward(
        self,
        x: Hidden,
        context: Hidden | Context | None = None,
        *,
        key_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> Hidden:
        q, k, v, window = self._read(x, context, key_mask, positions)
        others: tuple[KeySource, ...] = ()
        if x.shape[1] >= self.block:
            summaries = self._summaries(x, key_mask)
            others = (KeySource(Dense(), summaries.k, summaries.v, summaries.present, extra=summaries.bias),)
        if key_mask is not None:
            hidden = ~key_mask[:, None, :, None]
            k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
        return self._merge(window.read_window(q, k, v, key_mask, self._bias(k.shape[2]), others=others))

    @any_rank(2)
    def weights(
        self,
        x: Hidden,
        context: Hidden | Context | None = None,
        *,
        key_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> Weights:
        """The map of each head by the definition: a column for each token, then one for each summary."""
        q, k, _, window = self._read(x, context, key_mask, positions)
        length, bias = x.shape[1], self._bias(k.shape[2])
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * window.score_scale
        if bias is not None:
            scores = scores + offset_bias(bias, length, length)
        keep = window.near(length, q.device) & readable(length, length, False, key_mask, q.device)
        keep = keep.expand(scores.shape)
        if length >= self.block:
            summaries = self._summaries(x, key_mask)
            more = torch.einsum("bhid,bhsd->bhis", q, summaries.k) * window.score_scale + summaries.bias
            keep = torch.cat([keep, summaries.present[:, None, None].expand(more.shape)], -1)
            scores = torch.cat([scores, more], -1)
        return masked_softmax(scores, keep)

    def _read(
        self, x: Tensor, context: Tensor | Context | None, key_mask: Tensor | None, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, WindowAttention]:
        if context is not None:
            raise Unsupported("summaries of blocks are for self-attention; leave out context")
        assert isinstance(self.mechanism, WindowAttention)
        q, k, v, _ = self._heads(x, None, key_mask)
        return *self._rotate(q, k, None, 0, positions), v, self.mechanism

    def _summaries(self, x: Tensor, key_mask: Tensor | None) -> Summaries:
        batch, length, width = x.shape
        most = length // self.block
        real = torch.ones(batch, length, dtype=torch.bool, device=x.device) if key_mask is None else key_mask
        full = real.sum(1, keepdim=True) // self.block  # blocks of each text
        blocks = ((real.cumsum(1) - 1).clamp(min=0) // self.block).minimum((full - 1).clamp(min=0))
        # Padding, and texts without a whole block, go to a row that is left out.
        rows = torch.where(real & (full > 0), blocks, most)[:, :, None].expand(-1, -1, width)
        sums = x.new_zeros(batch, most + 1, width).scatter_add(1, rows, x)[:, :most]
        normed = self.summary_norm(sums)
        k, v = self._shared(self._project("k", normed), self._project("v", normed))
        index = torch.arange(most, device=x.device)
        table = self.summary_position.weight[self.summary_position.bucket(index - blocks[:, :, None])]
        return Summaries(k, v, index < full, table.permute(0, 3, 1, 2).to(x.dtype))


__all__ = ["TransientGlobalHeads"]
