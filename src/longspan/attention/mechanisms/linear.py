"""Linear attention: φ(q)·φ(k) replaces exp(q·k), so keys and values are summed once for all queries.

    out_i = φ(q_i)·Σ_j φ(k_j) v_jᵀ / (φ(q_i)·Σ_j φ(k_j) + ε),    φ(x) = elu(x) + 1

As in the authors' code, products are not scaled by 1/√head_dim. φ may be any function of one position that returns no
negative number, with or without parameters; the class takes it as `feature_map`:

>>> LinearAttention(Shape(heads=8, head_dim=64), feature_map=nn.Sequential(nn.Linear(64, 32), nn.Softplus()))

It receives float32 if the heads are in half precision. `cost` covers the named maps only.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from longspan import config
from longspan.attention.base import Extras, Shape, Supports, readable
from longspan.attention.kernels.linear_scan.scan import Map
from longspan.attention.parts.features import EluPlusOne, Relu, as_feature_map
from longspan.attention.parts.kernel_attention import KernelAttention, normalised
from longspan.config import option
from longspan.shapes import Keys, Queries, Weights

MAPS: dict[str, Map] = {"elu": EluPlusOne(), "relu": Relu(epsilon=0.0), "softplus": functional.softplus}


class LinearAttention(KernelAttention):
    name = "linear"
    paper = "Katharopoulos et al. 2020"
    survey_class = ("KR",)
    order = "n·head_dim"
    supports = Supports(causal=True, cross=True, streaming=True, grouped=True, left_padding=True)
    epsilon = 1e-6

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        features: str = option("elu", "the map φ; elu is elu(x) + 1", choices=tuple(MAPS))

    def __init__(
        self,
        shape: Shape,
        options: Options | None = None,
        *,
        causal: bool = False,
        dropout: float = 0.0,
        feature_map: Map | None = None,
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        self.map = MAPS[self.options.features] if feature_map is None else feature_map

    def feature_map(self) -> Map:
        return self.map

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        similarity = torch.einsum("bhim,bhjm->bhij", self._features(q), self._features(k))
        keep = readable(q.shape[2], k.shape[2], self.causal, extras.key_mask, q.device)
        return normalised(similarity, keep, self.epsilon)

    def _features(self, x: torch.Tensor) -> torch.Tensor:
        if self.map is MAPS["elu"]:
            return functional.elu(x) + 1
        if self.map is MAPS["relu"]:
            return functional.relu(x)
        rows = x.flatten(0, 1)
        features: torch.Tensor = as_feature_map(self.map, rows).features(rows).unflatten(0, x.shape[:2])
        return features
