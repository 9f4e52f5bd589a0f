"""Sliding-window attention: each query reads the keys within a window around it, optionally dilated.

    query i reads key j if j = i + t·dilation with |t| ≤ window, and j ≤ i if causal; one softmax over them

Beltagy et al. 2020, section 3.1, without global tokens (see `longformer`).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Band, ByHead, Layout, Residue, check_reach, offset_bias
from longspan.attention.map_factors import SoftmaxMap
from longspan.attention.parts import persistent_memory
from longspan.attention.state import Rows, State, append_mask
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights


@dataclass(frozen=True)
class WindowState(State):
    k: Rows  # of the last window · dilation positions
    v: Rows
    seen: Rows | None  # which of them may be read; None if all may


class WindowAttention(Attention):
    name = "window"
    paper = "Beltagy et al. 2020 (sliding window)"
    survey_class: ClassVar[tuple[str, ...]] = ("FP",)  # declared again, because Longformer's has more entries
    order = "n·window"
    exponent = 1.0
    scaled_dot = True
    supports = Supports(causal=True, streaming=True, bias=True, dropout=True, left_padding=True, persistent=True)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        window: int = option(
            128,
            "neighbours read on each side, besides the query's own position: 2·window + 1 keys, causal window + 1",
            low=1,
        )
        dilation: int | tuple[int, ...] = option(1, "distance between neighbours; a tuple has one per head", low=1)

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        given = self.options.dilation
        if isinstance(given, tuple) and len(given) != shape.heads:
            raise InvalidOption(f"option dilation must have one number for each of {shape.heads} heads, not {given!r}")
        self.dilations = given if isinstance(given, tuple) else (given,) * shape.heads

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length = q.shape[2]
        near = self.near(length, q.device)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / self.shape.head_dim**0.5
        if extras.bias is not None:
            check_reach(extras.bias, min(length - 1, self._reach))
            scores = scores + offset_bias(extras.bias, length, length)
        keep = near & readable(length, length, self.causal, extras.key_mask, q.device)
        return masked_softmax(*persistent_memory.append_scores(self, scores, keep, q))

    def near(self, length: int, device: torch.device) -> Tensor:
        """Which keys are in the window of each query, future ones included: (heads, length, length)."""
        offsets = torch.arange(length, device=device) - torch.arange(length, device=device)[:, None]
        dilation = torch.tensor(self.dilations, device=device)[:, None, None]
        return (offsets.abs() <= self.options.window * dilation) & (offsets % dilation == 0)

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        return self._joint(q, k, v, extras.key_mask, extras.bias)

    def _joint(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, past: int = 0
    ) -> Tensor:
        """Attention of queries that follow `past` keys."""
        if bias is not None:
            check_reach(bias, min(k.shape[2] - 1, self._reach))
        dropout = self.dropout if self.training else 0.0
        scale = self.shape.head_dim**-0.5
        if past and max(self.dilations) > 1:
            # The layout groups positions by residue, so the past needs queries too; their outputs are dropped.
            sources = [KeySource(self._layout(), k, v, keep, bias), *persistent_memory.sources(self, q)]
            return joint(pad(q, (0, 0, past, 0)), sources, scale=scale, dropout=dropout)[:, :, past:]
        sources = [KeySource(self._layout(past), k, v, keep, bias), *persistent_memory.sources(self, q)]
        return joint(q, sources, scale=scale, dropout=dropout)

    def _layout(self, past: int = 0) -> Layout:
        band = Band(self.options.window, 0 if self.causal else self.options.window, past)
        kinds = sorted(set(self.dilations))
        layouts = [band if dilation == 1 else Residue(dilation, band) for dilation in kinds]
        if len(kinds) == 1:
            return layouts[0]
        heads = [tuple(head for head, used in enumerate(self.dilations) if used == dilation) for dilation in kinds]
        return ByHead(tuple(zip(heads, layouts)))

    def factorise(self, q: Queries, k: Keys, extras: Extras) -> SoftmaxMap | None:
        if self.persistent is not None:
            return None
        reach = tuple(self.options.window * dilation for dilation in self.dilations)
        scale = self.shape.head_dim**-0.5
        return SoftmaxMap(
            q, k, scale, self.causal, extras.key_mask, extras.bias, before=reach, after=reach, steps=self.dilations
        )

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width = self.shape.heads, self.shape.fused_width
        pairs = self._layout().pairs(heads, queries, keys)
        cost = Cost(4 * pairs * width, heads * queries * (width + 1))  # kept: output and log-sum-exp
        return persistent_memory.add_cost(self, cost, queries)

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> WindowState:
        self._refuse_streaming()
        reach = self._reach
        return WindowState(Rows.empty(batch, reach), Rows.empty(batch, reach), None)

    @property
    def _reach(self) -> int:
        return self.options.window * max(self.dilations)

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: WindowState, extras: Extras) -> tuple[Output, State]:
        past = len(state.k)
        seen = append_mask(state.seen, past, extras.key_mask, q, self._reach)
        keys, values = state.k.append(k), state.v.append(v)
        keep = None if seen is None else seen.value[:, 0, :, 0]
        out = self._joint(q, keys.value, values.value, keep, extras.bias, past)
        return out, WindowState(keys.trim(), values.trim(), None if seen is None else seen.trim())
