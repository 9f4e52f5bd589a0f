"""Linear attention: exp(q·k) is replaced by φ(q)·φ(k), so that keys and values are summed once for all queries.

    out_i = φ(q_i)·Σ_j φ(k_j) v_jᵀ / (φ(q_i)·Σ_j φ(k_j) + ε),    φ(x) = elu(x) + 1

Products are not scaled by 1/√head_dim; the authors use none. φ may be any function that makes no negative number of a
vector, position by position, with parameters or without; the class takes it as `feature_map`:

>>> Linear(Shape(heads=8, head_dim=64), feature_map=nn.Sequential(nn.Linear(64, 32), nn.Softplus()))

It is given float32 where the heads are of half precision. What it multiplies and keeps is not in `cost`, which knows
the named maps.
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
    supports = Supports(causal=True, cross=True, streaming=True, left_padding=True)
    epsilon = 1e-6

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        features: str = option("elu", "the map φ; elu stands for elu(x) + 1", choices=tuple(MAPS))

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
