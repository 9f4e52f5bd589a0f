"""Hedgehog: linear attention with learned feature maps that can imitate the weights of softmax.

    out_i = φ_q(q_i)·Σ_j φ_k(k_j) v_jᵀ / φ_q(q_i)·Σ_j φ_k(k_j),    φ(x) = [softmax(Wx); softmax(−Wx)]

Queries and keys have their own W in each head, the identity at the start. The maps are meant to be trained on the
weights of a softmax model (section 4.2 of the paper): `oracle(q, k)` returns the weights of this mechanism and is
differentiable, in O(n²). Products are not scaled by 1/√head_dim.

Grouped keys are not repeated. Every query head still has its own W for the keys it reads, as in LoLCATs, so the state
of decoding is that of each query head.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, readable, share_heads
from longspan.attention.groups import interleave, members, split_members
from longspan.attention.kernels.linear_scan import scan
from longspan.attention.kernels.linear_scan.scan import ScanState
from longspan.attention.map_factors import ProductMap, kernel_map
from longspan.attention.parts.features import Identity
from longspan.attention.parts.hedgehog_features import hedgehog, start_matrix
from longspan.attention.parts.kernel_attention import normalised
from longspan.attention.state import State, is_number
from longspan.config import option
from longspan.precision import state_type
from longspan.shapes import Keys, Output, Queries, Values, Weights

ALL = slice(None)  # every head


class HedgehogAttention(Attention):
    name = "hedgehog"
    paper = "Zhang et al. 2024"
    survey_class = ("KR",)
    order = "n·features"
    exponent = 1.0
    supports = Supports(causal=True, cross=True, streaming=True, grouped=True, left_padding=True)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        features: int | None = option(None, "rows of W; each gives two features; head_dim unless given", low=1)
        joined: bool = option(False, "one softmax over [2Wx; −2Wx] instead of one over each half")

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        rows = shape.head_dim if self.options.features is None else self.options.features
        self.query_map = start_matrix(shape.heads, rows, shape.head_dim)
        self.key_map = start_matrix(shape.heads, rows, shape.head_dim)

    @property
    def width(self) -> int:
        """The number of features of a query or key."""
        return 2 * self.query_map.shape[1]

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        queries, keys = self._features(q, k)
        similarity = torch.einsum("bhim,bhjm->bhij", queries, keys)
        keep = readable(q.shape[2], k.shape[2], self.causal, extras.key_mask, q.device)
        return normalised(similarity, keep).to(q.dtype)

    def _features(self, q: Tensor, k: Tensor, heads: slice = ALL) -> tuple[Tensor, Tensor]:
        """Those of queries and keys of these heads."""
        joined = self.options.joined
        return hedgehog(q, self.query_map[heads], joined), hedgehog(k, self.key_map[heads], joined)

    @staticmethod
    def _members(q: Tensor, k: Tensor) -> Iterator[tuple[Tensor, slice]]:
        """The n-th queries of all groups that share a head of keys, and which heads they are."""
        yield from zip(split_members(q, k.shape[1]), members(q.shape[1], k.shape[1]))

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        if self.causal:
            return self._causal(q, k, v, extras, None)[0]
        outs = []
        for member, heads in self._members(q, k):
            queries, keys = self._features(member, k, heads)
            outs.append(scan.full(queries, keys, v.to(keys.dtype), Identity(), key_mask=extras.key_mask).to(v.dtype))
        return interleave(outs)

    def _causal(
        self, q: Tensor, k: Tensor, v: Tensor, extras: Extras, state: ScanState | None
    ) -> tuple[Tensor, ScanState]:
        if is_number(q.shape[2], 1):  # decoding: the state of each query head takes in the new token
            k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
        outs, sums = [], []
        for member, heads in self._members(q, k):
            queries, keys = self._features(member, k, heads)
            before = None if state is None else ScanState(state.sums[:, heads], state.offset[:, heads])
            out, after = scan.causal(
                queries, keys, v.to(keys.dtype), Identity(), key_mask=extras.key_mask, state=before
            )
            outs.append(out.to(v.dtype))
            sums.append(after)
        states = (interleave([getattr(after, name) for after in sums]) for name in ("sums", "offset"))
        return interleave(outs), ScanState(*states)

    def factorise(self, q: Queries, k: Keys, extras: Extras) -> ProductMap:
        queries, keys = self._features(q, k)
        return kernel_map(queries, keys, causal=self.causal, key_mask=extras.key_mask)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, values = self.shape.key_heads, self.width, self.shape.value_dim
        maps = heads * (queries + keys) * width * self.shape.head_dim  # half as many rows as features
        features = 2 * heads * (queries + keys) * width  # after the softmax, and after the clamp
        flops = maps + scan.flops(Identity(), queries, keys, heads, width, values, causal=self.causal)
        kept = features + scan.kept(Identity(), queries, heads, width, values, causal=self.causal)
        return Cost(self.shape.group * flops, self.shape.group * kept)  # the members of a group one after another

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> ScanState:
        self._refuse_streaming()
        dtype, device = state_type(self, dtype, device)
        values = self.shape.value_dim
        return scan.start(batch, self.shape.heads, self.width, values, Identity(), dtype=dtype, device=device)

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: ScanState, extras: Extras) -> tuple[Output, State]:
        return self._causal(q, k, v, extras, state)
