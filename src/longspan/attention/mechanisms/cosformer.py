"""cosFormer: linear attention with ReLU features, weighted by the cosine of the distance.

    sim(i, j) = relu(q_i)·relu(k_j)·cos(π(i − j)/2M)

The cosine of a difference is a sum of two products of a factor of i and a factor of j, so sim is a product of features
twice as wide: [relu(x_i)·cos(πi/2M), relu(x_i)·sin(πi/2M)]. M is `max_length`, not the length of the input as in the
paper's code: neither padding nor the next token may change it.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, readable
from longspan.attention.kernels.linear_scan import scan
from longspan.attention.kernels.linear_scan.scan import ScanState
from longspan.attention.map_factors import ProductMap, kernel_map
from longspan.attention.parts.features import Identity
from longspan.attention.parts.kernel_attention import normalised
from longspan.attention.state import State
from longspan.errors import InvalidInput, InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights

EPSILON = 1e-6  # in the denominator: a query without positive entries reads nothing


@dataclass(frozen=True)
class CosformerState(State):
    sums: ScanState
    position: int  # of the next token


class CosformerAttention(Attention):
    name = "cosformer"
    paper = "Qin et al. 2022"
    survey_class = ("KR",)
    order = "n·head_dim"
    exponent = 1.0
    supports = Supports(causal=True, cross=True, cross_rows=False, streaming=True, grouped=True)

    def __init__(
        self, shape: Shape, options: config.Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        if shape.max_length is None:
            raise InvalidOption("cosformer scales distances by max_length: give max_length")
        self.limit = shape.max_length
        self.fixed_length = True

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        queries, keys = q.shape[2], k.shape[2]
        self._check_length(max(queries, keys))
        distance = torch.arange(queries, device=q.device)[:, None] - torch.arange(keys, device=q.device)
        similarity = torch.einsum("bhid,bhjd->bhij", q.relu(), k.relu())
        similarity = similarity * torch.cos(math.pi * distance.to(q.dtype) / (2 * self.limit))
        return normalised(similarity, readable(queries, keys, self.causal, extras.key_mask, q.device), EPSILON)

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        self._check_length(max(q.shape[2], k.shape[2]))
        if self.causal:
            return self._causal(q, k, v, extras, None, 0)[0]
        queries, keys = self._features(q, 0), self._features(k, 0)
        out = scan.full(queries, keys, v.to(keys.dtype), Identity(), key_mask=extras.key_mask, epsilon=EPSILON)
        return out.to(v.dtype)

    def _causal(
        self, q: Tensor, k: Tensor, v: Tensor, extras: Extras, state: ScanState | None, first: int
    ) -> tuple[Tensor, ScanState]:
        queries, keys = self._features(q, first), self._features(k, first)
        mask, values = extras.key_mask, v.to(keys.dtype)
        out, state = scan.causal(queries, keys, values, Identity(), key_mask=mask, epsilon=EPSILON, state=state)
        return out.to(v.dtype), state

    def _features(self, x: Tensor, first: int) -> Tensor:
        """The features of x; its first position is `first`."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        position = torch.arange(first, first + x.shape[2], dtype=dtype, device=x.device)[:, None]
        angle = position * (math.pi / (2 * self.limit))
        # Sine and cosine are not negative up to M, so they may go inside relu, which then keeps only its result.
        return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1).relu()

    def _check_length(self, length: int) -> None:
        if length > self.limit:
            raise InvalidInput(f"cosformer was built for max_length {self.limit}, and there are {length} positions")

    def factorise(self, q: Queries, k: Keys, extras: Extras) -> ProductMap:
        self._check_length(max(q.shape[2], k.shape[2]))
        queries, keys = self._features(q, 0), self._features(k, 0)
        return kernel_map(queries, keys, causal=self.causal, key_mask=extras.key_mask, epsilon=EPSILON)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, group = self.shape.key_heads, self.shape.group
        width, values = self.shape.head_dim, self.shape.value_dim
        features = 2 * width * heads * (group * queries + keys)
        tables = 2 * (queries + keys)
        form: dict[str, Any] = {"causal": self.causal, "group": group}
        return Cost(
            scan.flops(Identity(), queries, keys, heads, 2 * width, values, **form),
            scan.kept(Identity(), queries, heads, 2 * width, values, **form) + features + tables,
        )

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> CosformerState:
        self._refuse_streaming()
        heads, features, values = self.shape.heads, 2 * self.shape.head_dim, self.shape.value_dim
        return CosformerState(scan.start(batch, heads, features, values, Identity(), dtype=dtype, device=device), 0)

    def extend_heads(
        self, q: Queries, k: Keys, v: Values, state: CosformerState, extras: Extras
    ) -> tuple[Output, State]:
        end = state.position + q.shape[2]
        self._check_length(end)
        out, sums = self._causal(q, k, v, extras, state.sums, state.position)
        return out, CosformerState(sums, end)
