"""A sliding window in the plainest form that keeps the contract; the faults of `test_faults.py` are sown in it."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, State, Supports, masked_softmax, readable
from longspan.config import option


@dataclass(frozen=True)
class PlainState(State):
    k: Tensor  # of the last `window` positions
    v: Tensor
    seen: Tensor


class PlainWindow(Attention):
    name = "plain_window"
    paper = "none"
    survey_class = ("FP",)
    order = "n·window"
    exponent = 1.0
    supports = Supports(causal=True, streaming=True, dropout=True)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        window: int = option(4, "neighbours on each side", low=1)

    def define(self, q: Tensor, k: Tensor, extras: Extras) -> Tensor:
        place = torch.arange(q.shape[2])
        near = (place[:, None] - place).abs() <= self.options.window
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / self.shape.head_dim**0.5
        return masked_softmax(scores, near & readable(q.shape[2], k.shape[2], self.causal, extras.key_mask, q.device))

    # Each step is a method of its own, so that a fault can replace just that step.

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        keep = self.readable(q, extras.key_mask)
        weights = self.normalise(self.scores(q, k), keep)
        weights = dropout(weights, self.dropout, self.training)
        return (weights[..., None, :] @ self.near(v).transpose(-1, -2))[..., 0, :]

    @property
    def reach(self) -> int:
        return self.options.window

    def near(self, x: Tensor) -> Tensor:
        """The neighbours of each position: (batch, heads, length, width, span)."""
        right = 0 if self.causal else self.reach
        return pad(x, (0, 0, self.reach, right)).unfold(2, self.reach + right + 1, 1)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q[..., None, :] @ self.near(k))[..., 0, :] * self.shape.head_dim**-0.5

    def readable(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        keep = torch.ones(1, q.shape[2], dtype=torch.bool) if key_mask is None else key_mask
        return self.near(keep[:, None, :, None])[..., 0, :]

    def normalise(self, scores: Tensor, keep: Tensor) -> Tensor:
        return masked_softmax(scores, keep)

    def cost(self, queries: int, keys: int) -> Cost:
        span = self.reach + 1 if self.causal else 2 * self.reach + 1
        heads, width = self.shape.heads, self.shape.head_dim
        gathered = 2 * queries * span * width  # of keys and of values
        return Cost(4 * heads * queries * span * width, heads * (gathered + 2 * queries * span))

    def start(self, batch: int, *, dtype: Any = None, device: Any = None) -> PlainState:
        self._refuse_streaming()
        nothing = torch.zeros(batch, self.shape.heads, 0, self.shape.head_dim, dtype=dtype, device=device)
        return PlainState(nothing, nothing, torch.ones(batch, 0, dtype=torch.bool, device=device))

    @property
    def remembered(self) -> int:
        return self.options.window

    def extend_heads(
        self, q: Tensor, k: Tensor, v: Tensor, state: PlainState, extras: Extras
    ) -> tuple[Tensor, PlainState]:
        past, new = state.k.shape[2], torch.ones(q.shape[0], q.shape[2], dtype=torch.bool)
        keys, values = torch.cat([state.k, k], dim=2), torch.cat([state.v, v], dim=2)
        seen = torch.cat([state.seen, new if extras.key_mask is None else extras.key_mask], dim=1)
        out = self.attend(pad(q, (0, 0, past, 0)), keys, values, replace(extras, key_mask=seen))[:, :, past:]
        last = self.remembered
        return out, PlainState(keys[:, :, -last:], values[:, :, -last:], seen[:, -last:])
