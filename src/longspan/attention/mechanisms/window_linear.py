"""The hybrid of LoLCATs: softmax over a sliding window, linear attention to all older keys, one normaliser.

    out_i = (Σ_near γ·exp(s_ij − m_i) v_j + Σ_far φ_q(q_i)·φ_k(k_j) v_j) / (the same without v)

    near: the query's own key, `window` keys before it, and the first `sinks` tokens; far: all other earlier keys
    s_ij = q_i·k_j/√head_dim,    m_i = the largest s_ij of near,    γ = σ(mix) per head, φ as in `hedgehog`

m_i does not cancel: the linear part is not divided by exp(m_i), so the weight of the near keys before division lies
between γ and γ·(window + 1 + sinks), however long the queries are. Its gradient is not detached, as in the release.

`window` counts as in the mechanism `window`, without the query's own key: the paper's 64 keys are `window=63`.

Grouped keys are not repeated, and the window keeps key heads only. Every query head has its own φ_k for the keys it
reads, as in the release, so the sums of the linear part are those of each query head.

To heal a model one trains and measures the two parts separately. `parts` switches them: with "window" the output is
the softmax over the near keys, with "linear" all keys, the query's own and the sinks included, go through φ.
`active_window` narrows the window. `forward`, `weights`, `oracle` and `extend` obey both; neither is saved. `using`
sets them for a while. `oracle(q, k)` returns the weights, differentiable, in O(n²).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, readable
from longspan.attention.groups import interleave, members, split_members
from longspan.attention.kernels import window_linear as kernel
from longspan.attention.kernels.window_linear import HybridInputs, HybridMasks, HybridPlan
from longspan.attention.parts.first_tokens import FirstTokens
from longspan.attention.parts.hedgehog_features import hedgehog, start_matrix
from longspan.attention.parts.kernel_attention import normalised
from longspan.attention.state import Rows, State, append_mask
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.precision import state_type
from longspan.shapes import Keys, Output, Queries, Values, Weights

PARTS = ("both", "window", "linear")
START = math.log(1 / 9)  # of `mix`: γ = 0.1


@dataclass(frozen=True)
class WindowLinearState(State):
    k: Rows  # of the keys in the window of the next token
    v: Rows
    seen: Rows | None  # which of them may be read; None if all may
    sums: Tensor  # Σ φ_k(k)[v, 1]ᵀ of the keys before them, without sinks: (batch, heads, features, value_dim + 1)
    first: FirstTokens | None  # the sinks; None without sinks and before the first token
    length: int | None  # tokens read so far; None without sinks, as nothing else needs positions


class WindowLinearAttention(Attention):
    name = "window_linear"
    paper = "Zhang et al. 2024 (LoLCATs)"
    survey_class = ("KR", "FP")
    order = "n·(window + features)"
    exponent = 1.0
    supports = Supports(causal=True, bidirectional=False, streaming=True, grouped=True, left_padding=True)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        window: int = option(63, "earlier keys read by softmax, besides the query's own", low=0)
        sinks: int = option(0, "first tokens of the text that stay in the softmax", low=0)
        features: int | None = option(None, "rows of W; each gives two features; head_dim unless given", low=1)
        affine: bool = option(False, "weigh the linear part by 1 − γ instead of 1")

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        rows = shape.head_dim if self.options.features is None else self.options.features
        self.query_map = start_matrix(shape.heads, rows, shape.head_dim)
        self.key_map = start_matrix(shape.heads, rows, shape.head_dim)
        self.mix = nn.Parameter(torch.full((shape.heads,), START))
        self._parts, self._active_window = "both", self.options.window

    # Switches

    @property
    def parts(self) -> str:
        """Which parts are used: "both", "window" (softmax over the near keys) or "linear" (φ for every key)."""
        return self._parts

    @parts.setter
    def parts(self, parts: str) -> None:
        if parts not in PARTS:
            raise InvalidOption(f"parts must be one of {', '.join(PARTS)}, not {parts!r}")
        self._parts = parts

    @property
    def active_window(self) -> int:
        """The width of the window in use, at most the option `window`. 0 leaves the query's own key."""
        return self._active_window

    @active_window.setter
    def active_window(self, window: int | None) -> None:
        window = self.options.window if window is None else window
        if not 0 <= window <= self.options.window:
            raise InvalidOption(
                f"active_window must be from 0 to the option window, {self.options.window}, not {window!r}; "
                'parts = "linear" leaves no window at all'
            )
        self._active_window = window

    @contextmanager
    def using(self, parts: str | None = None, window: int | None = None) -> Iterator[None]:
        """Inside the block, other `parts` or another `active_window`."""
        before = self._parts, self._active_window
        try:
            if parts is not None:
                self.parts = parts
            if window is not None:
                self.active_window = window
            yield
        finally:
            self._parts, self._active_window = before

    @property
    def span(self) -> int:
        """How many keys the window has, the query's own included; 0 without a softmax part."""
        return 0 if self._parts == "linear" else self._active_window + 1

    @property
    def sinks(self) -> int:
        """How many sinks are in the softmax."""
        return 0 if self._parts == "linear" else self.options.sinks

    @property
    def width(self) -> int:
        """The number of features of a query or key."""
        return 2 * self.query_map.shape[1]

    @property
    def far_factor(self) -> Tensor:
        """The factor of the linear part over that of the softmax part, for each head."""
        factors = self._factors(self.mix.dtype)
        return factors[1].div(factors[0])

    @torch.no_grad()
    def set_far_factor(self, factor: Tensor) -> None:
        """Sets `mix` so that `far_factor` is `factor`; without `affine` it cannot be 1 or less, and comes near 1."""
        gamma = 1 / (1 + factor) if self.options.affine else 1 / factor
        self.mix.copy_(gamma.clamp(1e-4, 0.99).logit().to(self.mix))

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length = q.shape[2]
        may = readable(length, length, True, extras.key_mask, q.device)
        position = torch.arange(length, device=q.device)
        real = may.new_ones(1, length) if extras.key_mask is None else extras.key_mask
        first = real & (real.cumsum(1) <= self.sinks)
        near = may & ((position[:, None] - position < self.span) | first[:, None, None, :])
        gamma, other = (factor[:, None, None] for factor in self._factors(q.dtype))
        scores = (torch.einsum("bhid,bhjd->bhij", q, k) / self.shape.head_dim**0.5).masked_fill(~near, -math.inf)
        largest = scores.amax(-1, keepdim=True)
        weights = gamma * (scores - largest.masked_fill(largest == -math.inf, 0.0)).exp()
        if self._parts != "window":
            queries, keys = hedgehog(q, self.query_map, False), hedgehog(k, self.key_map, False)
            weights = weights + other * torch.einsum("bhim,bhjm->bhij", queries, keys) * (may & ~near)
        return normalised(weights, may).to(q.dtype)

    def _factors(self, dtype: torch.dtype) -> Tensor:
        """The factors of the softmax part and of the linear part, (2, heads)."""
        gamma = self.mix.to(torch.promote_types(dtype, torch.float32)).sigmoid()
        return torch.stack([gamma, 1 - gamma if self.options.affine else torch.ones_like(gamma)])

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        first = FirstTokens.of(k, v, self.sinks, extras.key_mask)
        return self._read(q, k, v, extras.key_mask, None, first, 0)

    def _plan(self, past: int = 0, start: int = 0) -> HybridPlan:
        linear, chunk = self._parts != "window", kernel.chunk_of(self.span, self.width, self.shape.value_dim)
        return HybridPlan(self.span, float(self.shape.head_dim**-0.5), linear, past, start, chunk)

    def _read(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        sums: Tensor | None,
        first: FirstTokens,
        start: int,
    ) -> Tensor:
        """The outputs of queries from the position `start` on, whose keys are the last of k."""
        dtype, past = torch.promote_types(q.dtype, torch.float32), k.shape[2] - q.shape[2]
        queries, query_map, key_map = q.to(dtype), self.query_map.to(dtype), self.key_map.to(dtype)
        keys, values, sink_k, sink_v = (x.to(dtype) for x in (k, v, first.k, first.v))
        sums, factors = None if self._parts == "window" else sums, self._factors(dtype)
        near = q.new_ones(1, k.shape[2], dtype=torch.bool) if keep is None else keep
        masks = HybridMasks(near, near & ~_among(first, start - past, k.shape[2]), first.at)
        plan, outs = self._plan(past, start), []
        for member, heads in zip(split_members(queries, k.shape[1]), members(q.shape[1], k.shape[1])):
            inputs = HybridInputs(
                member,
                keys,
                values,
                None if sums is None else sums[:, heads],
                query_map[heads],
                key_map[heads],
                factors[:, heads],
                sink_k,
                sink_v,
            )
            outs.append(kernel.hybrid(plan, inputs, masks))
        return interleave(outs).to(q.dtype)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, values = self.shape.key_heads, self.shape.head_dim, self.shape.value_dim
        plan, sinks = self._plan(), min(self.sinks, keys)
        flops = kernel.flops(plan, queries, heads, width, values, self.width, sinks)
        kept = kernel.kept(plan, queries, heads, values, self.width) + 3 * heads  # γ, and the factors of both parts
        return Cost(self.shape.group * flops, self.shape.group * kept)  # the members of a group one after another

    # Decoding

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> WindowLinearState:
        self._refuse_streaming()
        dtype, device = state_type(self, dtype, device)
        dtype = torch.promote_types(dtype, torch.float32)
        sums = torch.zeros(batch, self.shape.heads, self.width, self.shape.value_dim + 1, dtype=dtype, device=device)
        keys, values = (Rows.empty(batch, max(0, self.span - 1)) for _ in range(2))
        return WindowLinearState(keys, values, None, sums, None, 0 if self.sinks else None)

    def extend_heads(
        self, q: Queries, k: Keys, v: Values, state: WindowLinearState, extras: Extras
    ) -> tuple[Output, State]:
        keep = max(0, self.span - 1)
        if state.k.keep != keep or (state.length is None) != (self.sinks == 0):
            raise InvalidInput(
                f"the state keeps {state.k.keep} keys and {'no' if state.length is None else 'some'} sinks, and now "
                f"the window has {keep} and {self.sinks or 'no'} sinks: parts or active_window changed; start anew"
            )
        past, start = state.k.count, state.length or 0
        seen = append_mask(state.seen, past, extras.key_mask, q, keep)
        keys, values = state.k.append(k), state.v.append(v)
        readable_keys = None if seen is None else seen.value[:, 0, :, 0]
        first = FirstTokens.none_of(k, v, self.sinks) if state.first is None else state.first
        first = first.extend(k, v, extras.key_mask, start)
        out = self._read(q, keys.value, values.value, readable_keys, state.sums, first, start)
        sums, leaving = state.sums, past + k.shape[2] - keep
        if leaving > 0:
            far = ~_among(first, start - past, leaving)
            if readable_keys is not None:
                far = far & readable_keys[:, :leaving]
            left = keys.value[:, :, :leaving], values.value[:, :, :leaving]
            new = [
                kernel.add_keys(sums[:, heads], *left, far, self.key_map[heads])
                for heads in members(q.shape[1], k.shape[1])
            ]
            sums = interleave(new)
        window = (keys.trim(), values.trim(), None if seen is None else seen.trim())
        if not self.sinks:
            return out, WindowLinearState(*window, sums, None, None)
        return out, WindowLinearState(*window, sums, first, start + k.shape[2])


def _among(first: FirstTokens, start: int, count: int) -> Tensor:
    """Which of `count` positions from `start` on are first tokens: (batch or 1, count)."""
    position = torch.arange(count, device=first.at.device) + start
    return (position[:, None] == first.at[:, None, :]).any(-1)
