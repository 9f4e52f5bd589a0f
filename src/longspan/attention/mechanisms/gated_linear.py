"""Gated linear attention (GLA): a linear recurrence with learned forget gates for each token and dimension.

    S_t = diag(α_t)·S_(t−1) + k_t v_tᵀ,    out_t = q_t·S_t,    α_t = σ(W₂ W₁ x_t + b)^(1/τ)

The gates are a low-rank map of the hidden states x. τ = 16 keeps them near 1, so an untrained model remembers. This is
the mechanism alone; the normalisation of each head's output and the swish gate belong to the block. That normalisation
cancels any factor on a head, so scores are not scaled by 1/√head_dim.

With grouped queries the gates belong to the key heads, and so does the state.

A masked position is skipped: its gate is 1. With any other gate its content would reach other rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Stream, Supports, readable, share_heads
from longspan.attention.groups import interleave, split_members
from longspan.attention.kernels.linear_scan.gated import flops, gated, kept
from longspan.attention.state import State
from longspan.config import option
from longspan.errors import InvalidInput
from longspan.precision import full_precision, state_type
from longspan.shapes import Keys, Output, Queries, Values, Weights


@dataclass(frozen=True)
class GatedLinearState(State):
    sums: Tensor  # S (batch, key heads, head_dim, value_dim), in float32 at least


class GatedLinearAttention(Attention):
    name = "gated_linear"
    paper = "Yang et al. 2023"
    survey_class = ("KR", "RC")
    order = "n·head_dim"
    exponent = 1.0
    supports = Supports(causal=True, bidirectional=False, streaming=True, grouped=True, left_padding=True)
    key_weights = True
    streams = (Stream(name="hidden", kind="hidden", help="the hidden states that the gates are computed from"),)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        rank: int = option(16, "inner width of the map from hidden states to gates", low=1)
        temperature: float = option(16.0, "τ: the gates are the sigmoid's τ-th root", above=0)
        width: int | None = option(None, "width of the hidden states; heads·head_dim unless given", low=1)

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        self.width = shape.heads * shape.head_dim if self.options.width is None else self.options.width
        self.reduce = nn.Linear(self.width, self.options.rank, bias=False)
        self.gate = nn.Linear(self.options.rank, shape.key_heads * shape.head_dim)

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length = q.shape[2]
        alpha = torch.sigmoid(self._logits(extras, length)) ** (1 / self.options.temperature)
        if extras.key_mask is not None:
            alpha = alpha.masked_fill(~extras.key_mask[:, None, :, None], 1.0)
        alpha = share_heads(alpha, q.shape[1])
        position, fading, rows = torch.arange(length, device=q.device)[:, None], torch.zeros_like(k), []
        for i in range(length):
            # What remains of each key: 1 at its own step, then multiplied by the gate of each later step.
            fading = torch.where(position == i, 1.0, alpha[:, :, i : i + 1] * fading)
            rows.append(torch.einsum("bhd,bhjd->bhj", q[:, :, i], fading * k))
        return torch.stack(rows, 2) * readable(length, length, True, extras.key_mask, q.device)

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        sums = self._empty(q.shape[0], v.shape[3], q.dtype, q.device)
        return self._scan(q, k, v, sums, extras)[0]

    def _scan(self, q: Tensor, k: Tensor, v: Tensor, sums: Tensor, extras: Extras) -> tuple[Tensor, Tensor]:
        log_gates = logsigmoid(self._logits(extras, q.shape[2]).to(sums.dtype)) / self.options.temperature
        keys = k.to(sums.dtype)
        if extras.key_mask is not None:
            hidden = ~extras.key_mask[:, None, :, None]
            log_gates, keys = log_gates.masked_fill(hidden, 0.0), keys.masked_fill(hidden, 0.0)
        folded = [x.to(sums.dtype).flatten(0, 1) for x in (keys, v, log_gates, sums)]
        with full_precision(q):
            # Each member of the groups reads the same states.
            parts = [gated(x.to(sums.dtype).flatten(0, 1), *folded) for x in split_members(q, k.shape[1])]
        out = interleave([out.unflatten(0, k.shape[:2]) for out, _ in parts])
        return out.to(q.dtype), parts[0][1].unflatten(0, k.shape[:2])

    def _logits(self, extras: Extras, length: int) -> Tensor:
        hidden = extras.streams["hidden"]
        if hidden.shape[1:] != (length, self.width):
            raise InvalidInput(
                f"hidden must be (batch, length {length}, width {self.width}), not {tuple(hidden.shape)}; "
                "another width is an option"
            )
        dtype = self.gate.weight.dtype  # that of the heads, except under autocast
        if dtype.is_floating_point:
            hidden = hidden.to(dtype)
        logits: Tensor = self.gate(self.reduce(hidden)).unflatten(2, (self.shape.key_heads, -1))
        return logits.transpose(1, 2)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, rank = self.shape.key_heads, self.shape.head_dim, self.options.rank
        gates = 2 * queries * rank * (self.width + heads * width)
        # Of the gates: the reduced states, the logits, what logsigmoid keeps besides, and the logarithms.
        kept_by_gates = queries * (rank + 3 * heads * width)
        values, group = self.shape.value_dim, self.shape.group  # the members of a group one after another
        states = group * kept(queries, heads, width, values) - (group - 1) * heads * width * values  # one beginning
        return Cost(gates + group * flops(queries, heads, width, values), kept_by_gates + states)

    def _empty(self, batch: int, value_dim: int, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
        dtype = torch.promote_types(dtype, torch.float32)  # half precision would lose what is added late
        return torch.zeros(batch, self.shape.key_heads, self.shape.head_dim, value_dim, dtype=dtype, device=device)

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> GatedLinearState:
        self._refuse_streaming()
        return GatedLinearState(self._empty(batch, self.shape.value_dim, *state_type(self, dtype, device)))

    def extend_heads(
        self, q: Queries, k: Keys, v: Values, state: GatedLinearState, extras: Extras
    ) -> tuple[Output, State]:
        expected = (q.shape[0], self.shape.key_heads, self.shape.head_dim, v.shape[3])
        if state.sums.shape != expected:
            raise InvalidInput(f"the state must be of shape {expected} for these tokens, not {tuple(state.sums.shape)}")
        out, sums = self._scan(q, k, v, state.sums, extras)
        return out, GatedLinearState(sums)
