"""What mechanisms with a sliding window share (`window`, `longformer`): the window itself, its layout and its state."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, masked_softmax, readable
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Band, ByHead, Dense, FirstKeys, Layout, Residue, check_reach, offset_bias
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


class SlidingWindow(Attention):
    """Each query reads the keys within a window around it, optionally dilated."""

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
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * self.score_scale
        keep = self.near(q.shape[2], q.device)
        keep = keep & readable(q.shape[2], k.shape[2], self.causal, extras.key_mask, q.device)
        return masked_softmax(*persistent_memory.append_scores(self, self.add_bias(scores, extras), keep, q))

    def add_bias(self, scores: Tensor, extras: Extras) -> Tensor:
        """Scores (batch, heads, length, length) with the bias of their offsets, if there is one."""
        if extras.bias is None:
            return scores
        length = scores.shape[2]
        check_reach(extras.bias, min(length - 1, self.reach))
        return scores + offset_bias(extras.bias, length, length)

    def near(self, length: int, device: torch.device) -> Tensor:
        """Which keys are in the window of each query, future ones included: (heads, length, length)."""
        offsets = torch.arange(length, device=device) - torch.arange(length, device=device)[:, None]
        dilation = torch.tensor(self.dilations, device=device)[:, None, None]
        return (offsets.abs() <= self.options.window * dilation) & (offsets % dilation == 0)

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        return self.read_window(q, k, v, extras.key_mask, extras.bias)

    def read_window(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        bias: Tensor | None,
        past: int = 0,
        others: tuple[KeySource, ...] = (),
    ) -> Tensor:
        """Attention of queries that follow `past` keys; `others` are further keys under the same softmax."""
        if bias is not None:
            check_reach(bias, min(k.shape[2] - 1, self.reach))
        if past and max(self.dilations) > 1:
            # The layout groups positions by residue, so the past needs queries too; their outputs are dropped.
            sources = [KeySource(self._layout(), k, v, keep, bias), *persistent_memory.sources(self, q)]
            return self.softmax_over(pad(q, (0, 0, past, 0)), sources)[:, :, past:]
        shared = k.shape[1] < q.shape[1] and bias is None and self.persistent is None
        if shared and q.shape[2] == 1 and 0 < past <= self.options.window:  # a new token, which reads every key
            return self._last_row(q, [KeySource(Dense(), k, v, keep), *map(_for_last_row, others)])
        sources = [KeySource(self._layout(past), k, v, keep, bias), *others, *persistent_memory.sources(self, q)]
        return self.softmax_over(q, sources)

    def _last_row(self, q: Tensor, sources: list[KeySource]) -> Tensor:
        """One query for each head, where several heads share keys: they become the rows of one head."""

        def rows(x: Tensor) -> Tensor:
            return x.reshape(x.shape[0], sources[0].k.shape[1], -1, x.shape[3])

        sources = [source if source.q is None else replace(source, q=rows(source.q)) for source in sources]
        return self.softmax_over(rows(q), sources).reshape(*q.shape[:3], -1)

    def softmax_over(self, q: Tensor, sources: list[KeySource]) -> Tensor:
        """One softmax over the keys of all sources."""
        return joint(q, sources, scale=self.score_scale, dropout=self.dropout if self.training else 0.0)

    @property
    def score_scale(self) -> float:
        """The factor on the products of queries and keys."""
        return float(self.shape.head_dim**-0.5)

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
        reach, scale = tuple(self.options.window * dilation for dilation in self.dilations), self.score_scale
        return SoftmaxMap(
            q, k, scale, self.causal, extras.key_mask, extras.bias, before=reach, after=reach, steps=self.dilations
        )

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width = self.shape.heads, self.shape.fused_width
        pairs = self._layout().pairs(heads, queries, keys)
        cost = Cost(4 * pairs * width, heads * queries * (width + 1))  # kept: output and log-sum-exp
        return persistent_memory.add_cost(self, cost, queries)

    def start(self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> State:
        self._refuse_streaming()
        return self.start_window(batch)

    def start_window(self, batch: int) -> WindowState:
        """An empty window."""
        return WindowState(Rows.empty(batch, self.reach), Rows.empty(batch, self.reach), None)

    @property
    def reach(self) -> int:
        """How far back the window reaches."""
        return self.options.window * max(self.dilations)

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: WindowState, extras: Extras) -> tuple[Output, State]:
        return self.extend_window(q, k, v, state, extras)

    def extend_window(
        self, q: Tensor, k: Tensor, v: Tensor, state: WindowState, extras: Extras, others: tuple[KeySource, ...] = ()
    ) -> tuple[Tensor, WindowState]:
        """The outputs for the next tokens, and the window behind them."""
        past = state.k.count
        seen = append_mask(state.seen, past, extras.key_mask, q, self.reach)
        keys, values = state.k.append(k), state.v.append(v)
        keep = None if seen is None else seen.value[:, 0, :, 0]
        out = self.read_window(q, keys.value, values.value, keep, extras.bias, past, others)
        return out, WindowState(keys.trim(), values.trim(), None if seen is None else seen.trim())


def _for_last_row(source: KeySource) -> KeySource:
    """A source of a single query, which reads its first keys or all keys, for several queries at that position."""
    layout = source.layout
    if isinstance(layout, FirstKeys):
        return KeySource(Dense(), source.k, source.v, layout.readable(0), q=source.q)
    assert layout == Dense()
    return source


__all__ = ["SlidingWindow", "WindowState"]
