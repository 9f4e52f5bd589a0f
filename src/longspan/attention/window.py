"""Sliding-window attention: each query reads its neighbours, near ones or every so many."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan import config
from longspan.attention.band import Band
from longspan.attention.base import Attention, Cost, Shape, Side, Supports, masked_softmax, readable
from longspan.attention.joint import Source, joint
from longspan.attention.layouts import Layout, Residue, check_reach, offset_bias
from longspan.attention.state import Rows, State, append_mask
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights


@dataclass(frozen=True)
class WindowState(State):
    k: Rows  # of the last window · dilation positions
    v: Rows
    seen: Rows | None  # which of them may be read; None while all may


class Window(Attention):
    name = "window"
    paper = "Beltagy et al. 2020 (sliding window)"
    family = ("FP",)
    order = "n·window"
    exponent = 1.0
    supports = Supports(causal=True, streaming=True, bias=True, dropout=True)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        window: int = option(
            128,
            "neighbours read on each side, besides the query's own position: 2·window + 1 keys, causal window + 1",
            low=1,
        )
        dilation: int | tuple[int, ...] = option(1, "distance between neighbours; a tuple has one per head", low=1)

    def __init__(self, shape: Shape, options: Any = None, *, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        given = self.options.dilation
        if isinstance(given, tuple) and len(given) != shape.heads:
            raise InvalidOption(f"option dilation must have one number for each of {shape.heads} heads, not {given!r}")
        self.dilations = given if isinstance(given, tuple) else (given,) * shape.heads

    def define(self, q: Queries, k: Keys, side: Side) -> Weights:
        length = q.shape[2]
        offsets = torch.arange(length, device=q.device) - torch.arange(length, device=q.device)[:, None]
        dilation = torch.tensor(self.dilations, device=q.device)[:, None, None]
        near = (offsets.abs() <= self.options.window * dilation) & (offsets % dilation == 0)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / self.shape.head_dim**0.5
        if side.bias is not None:
            scores = scores + offset_bias(side.bias, length, length)
        return masked_softmax(scores, near & readable(length, length, self.causal, side.key_mask, q.device))

    def attend(self, q: Queries, k: Keys, v: Values, side: Side) -> Output:
        if side.bias is not None:
            check_reach(side.bias, min(k.shape[2] - 1, self._reach))
        return self._by_dilation(q, k, v, side.key_mask, side.bias)

    def _by_dilation(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, past: int = 0
    ) -> Tensor:
        """Heads of one dilation go together."""
        kinds = sorted(set(self.dilations))
        if len(kinds) == 1:
            return self._attend_dilated(q, k, v, keep, bias, kinds[0], past)
        parts, order = [], []
        for dilation in kinds:
            heads = [head for head, own in enumerate(self.dilations) if own == dilation]
            own_bias = None if bias is None else bias[heads]
            parts.append(self._attend_dilated(q[:, heads], k[:, heads], v[:, heads], keep, own_bias, dilation, past))
            order += heads
        out = torch.cat(parts, dim=1)
        return out[:, torch.tensor(order, device=q.device).argsort()]

    def _attend_dilated(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, dilation: int, past: int
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if dilation == 1:
            layout = self._layout(1, past)
        else:  # residues are those of the keys, so queries that were answered before are put in front again
            layout = self._layout(dilation)
            q = torch.nn.functional.pad(q, (0, 0, past, 0))
        source = Source(layout, k, v, keep, bias)
        out = joint(q, [source], scale=self.shape.head_dim**-0.5, dropout=dropout)
        return out if dilation == 1 else out[:, :, past:]

    def _layout(self, dilation: int, past: int = 0) -> Layout:
        band = Band(self.options.window, 0 if self.causal else self.options.window, past)
        return band if dilation == 1 else Residue(dilation, band)

    def cost(self, queries: int, keys: int) -> Cost:
        width = self.shape.head_dim
        pairs = sum(self._layout(dilation).pairs(queries, keys) for dilation in self.dilations)
        kept = self.shape.heads * queries * (width + 1)  # the output and the log-sum-exp
        return Cost(4 * pairs * width, kept)

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> WindowState:
        self._refuse_streaming()
        reach = self._reach
        return WindowState(Rows.empty(batch, reach), Rows.empty(batch, reach), None)

    @property
    def _reach(self) -> int:
        return self.options.window * max(self.dilations)

    def decode(self, q: Queries, k: Keys, v: Values, state: WindowState, side: Side) -> tuple[Output, State]:
        past = len(state.k)
        if side.bias is not None:
            check_reach(side.bias, min(past + k.shape[2] - 1, self._reach))
        seen = append_mask(state.seen, past, side.key_mask, q, self._reach)
        keys, values = state.k.append(k), state.v.append(v)
        keep = None if seen is None else seen.value[:, 0, :, 0]
        out = self._by_dilation(q, keys.value, values.value, keep, side.bias, past)
        return out, WindowState(keys.trim(), values.trim(), None if seen is None else seen.trim())
