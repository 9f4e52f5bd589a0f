"""The base class of linear attention mechanisms, which differ in φ, ε and decay.

A mechanism gives its feature map and its definition. This class adds the fast path (`kernels/linear_scan`), the cost,
and decoding with a state of constant size.
"""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from longspan.attention.base import Attention, Cost, Extras
from longspan.attention.kernels.linear_scan import scan
from longspan.attention.kernels.linear_scan.scan import Decay, Map, ScanState
from longspan.attention.map_factors import ProductMap, kernel_map
from longspan.attention.parts.features import ExponentialMap, FeatureMap, as_feature_map
from longspan.attention.parts.initial_state import InitialState
from longspan.attention.state import State
from longspan.errors import Unsupported
from longspan.precision import state_type
from longspan.shapes import Keys, Output, Queries, Values, Weights


class KernelAttention(Attention):
    """Attention by φ(q)·φ(k), in time linear in the length."""

    exponent = 1.0
    epsilon: ClassVar[float] = 0.0  # added to the denominator
    normalise: ClassVar[bool] = True  # whether to divide a row by the sum of its weights

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.initial: InitialState | None = None

    def add_initial_state(self) -> None:
        """Learns the state before the first token, from 0 on; for causal attention."""
        if not self.causal:
            raise Unsupported(f"{self.name} has an initial state to learn only if it is causal")
        if isinstance(self._probed_map(), ExponentialMap):
            raise Unsupported(f"the sums of {self.name} are scaled by its keys, so it has no initial state to learn")
        self.initial = InitialState(self._empty(1, None, None), normalise=self.normalise)

    @abstractmethod
    def feature_map(self) -> Map:
        """The current φ."""

    def next_map(self) -> Map:
        """φ for a forward pass. A mechanism that redraws its map does so here, and nowhere else."""
        return self.feature_map()

    def decay(self, device: torch.device) -> Decay | None:
        """The factor on each head's past at every step; None for no decay."""
        return None

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        feature_map = self.next_map()
        if self.causal:
            state = None
            if self.initial is not None:
                state = self.initial.state(self._empty(len(q), q.dtype, q.device))
            return self._causal(q, k, v, feature_map, extras, state)[0]
        return scan.full(q, k, v, feature_map, key_mask=extras.key_mask, epsilon=self.epsilon)

    def _causal(
        self, q: Tensor, k: Tensor, v: Tensor, feature_map: Map, extras: Extras, state: ScanState | None
    ) -> tuple[Tensor, ScanState]:
        return scan.causal(
            q,
            k,
            v,
            feature_map,
            key_mask=extras.key_mask,
            epsilon=self.epsilon,
            normalise=self.normalise,
            decay=self.decay(q.device),
            state=state,
        )

    def factorise(self, q: Queries, k: Keys, extras: Extras) -> ProductMap:
        left, right = features(self.feature_map(), q, own_scale=True), features(self.feature_map(), k)
        decay = self.decay(q.device)
        return kernel_map(
            left,
            right,
            causal=self.causal,
            key_mask=extras.key_mask,
            epsilon=self.epsilon,
            normalise=self.normalise,
            log_decay=None if decay is None else decay.log(),
        )

    def cost(self, queries: int, keys: int) -> Cost:
        heads, feature_map = self.shape.key_heads, self._probed_map()
        width, values = self.shape.head_dim, self.shape.value_dim
        form: dict[str, Any] = {"causal": self.causal, "normalise": self.normalise, "group": self.shape.group}
        forgets = self.decay(torch.device("cpu")) is not None
        return Cost(
            scan.flops(feature_map, queries, keys, heads, width, values, **form),
            scan.kept(feature_map, queries, heads, width, values, decay=forgets, **form)
            + self.kept_by_map(queries, keys),
        )

    def _probed_map(self) -> FeatureMap:
        weight = next(self.parameters(), torch.empty(0))  # for the dtype and device of a learned map
        return as_feature_map(self.feature_map(), weight.new_zeros(1, 1, self.shape.head_dim))

    def kept_by_map(self, queries: int, keys: int) -> int:
        """Numbers that the map itself stores in a call for its backward pass."""
        return 0

    def start(self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> State:
        self._refuse_streaming()
        empty = self._empty(batch, dtype, device)
        return empty if self.initial is None else self.initial.state(empty)

    def _empty(self, batch: int, dtype: torch.dtype | None, device: torch.device | str | None) -> ScanState:
        heads, width, values = self.shape.heads, self.shape.head_dim, self.shape.value_dim
        normalise, feature_map, (dtype, device) = self.normalise, self.feature_map(), state_type(self, dtype, device)
        return scan.start(batch, heads, width, values, feature_map, normalise=normalise, dtype=dtype, device=device)

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: ScanState, extras: Extras) -> tuple[Output, State]:
        return self._causal(q, k, v, self.feature_map(), extras, state)


def features(given: Map, x: Tensor, *, own_scale: bool = False) -> Tensor:
    """φ(x), (batch, heads, length, features), at least float32.

    Exponential features are divided by their largest one, of each row (`own_scale`, for queries) or of the head: it
    cancels in the map, and they stay finite.
    """
    rows = x.flatten(0, 1).to(torch.promote_types(x.dtype, torch.float32))
    feature_map = as_feature_map(given, rows)
    if not isinstance(feature_map, ExponentialMap):
        plain: Tensor = feature_map.features(rows).unflatten(0, x.shape[:2])
        return plain
    logs = feature_map.exponents(rows) + feature_map.common(rows)
    largest = logs.amax(-1, keepdim=True)
    logs = logs - (largest if own_scale else largest.amax(1, keepdim=True))
    scaled: Tensor = logs.exp().unflatten(0, x.shape[:2])
    return scaled


def normalised(similarity: Weights, keep: Tensor, epsilon: float = 0.0) -> Weights:
    """Similarities of readable keys, divided by their sum + ε; a row with nothing to read is 0. For definitions."""
    similarity = similarity * keep
    total = similarity.sum(dim=-1, keepdim=True) + epsilon
    return similarity / total.masked_fill(total == 0, 1.0)
