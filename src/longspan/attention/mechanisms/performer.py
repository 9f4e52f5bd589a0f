"""Performer: softmax attention estimated by positive orthogonal random features (FAVOR+).

    exp(q·k/√d) = E[φ(q)·φ(k)],    φ(x) = m^(-1/2)·exp(ω_r·y − ‖y‖²/2) for r = 1 … m,    y = d^(-1/4)·x

The rows ω are drawn when the module is built, once for all heads, and saved with it. `redraw()` draws new ones. With
`redraw_interval` = N, training redraws by itself after every N passes:

- Passes in training mode are counted. With gradient accumulation, an optimiser step is several passes.
- The draw happens before the pass that uses it. A pass inside a backward pass is a recomputation (checkpointing): it is
  not counted and draws nothing. It sees the rows of the first run unless another pass has redrawn them since, so with
  checkpointing call backward before the next forward. Reversible layers remember the rows themselves.
- Evaluation, decoding and compiled modules draw nothing. The rows are a buffer that is written in place, so a compiled
  module sees the rows of `redraw()`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan import config
from longspan.attention.base import Extras, Shape, Supports, readable
from longspan.attention.parts.features import FeatureMap, PositiveExponential, Projection, Relu
from longspan.attention.parts.kernel_attention import KernelAttention, normalised
from longspan.config import option
from longspan.recompute import remember
from longspan.shapes import Keys, Queries, Weights

KINDS = ("positive", "hyperbolic", "relu")
RELU_EPSILON = 1e-3


class PerformerAttention(KernelAttention):
    name = "performer"
    paper = "Choromanski et al. 2020"
    survey_class = ("KR",)
    order = "n·features"
    supports = Supports(causal=True, cross=True, streaming=True, grouped=True, left_padding=True)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        features: int = option(256, "random rows ω; hyperbolic derives two features from each", low=1)
        kind: str = option(
            "positive",
            "positive: exp(ωx); hyperbolic: exp(ωx) and exp(−ωx); relu: relu(ωx) + 0.001, which is not softmax",
            choices=KINDS,
        )
        orthogonal: bool = option(True, "rows orthogonal to each other, in groups of head_dim; less variance")
        regularised: bool = option(
            False, "all rows of length √head_dim, not chi distributed: a smoother kernel than softmax"
        )
        redraw_interval: int = option(0, "training passes between two draws; 0: never redraw", low=0)

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        self.projection: Tensor
        self.passes: Tensor
        self.register_buffer("projection", self._draw())
        if self.options.redraw_interval:
            self.running_statistics = True
            self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        similarity = torch.einsum("bhim,bhjm->bhij", self._features(q), self._features(k))
        return normalised(similarity, readable(q.shape[2], k.shape[2], self.causal, extras.key_mask, q.device))

    def _features(self, x: Tensor) -> Tensor:
        omega = self.projection.to(x.dtype)
        if self.options.kind == "relu":
            return torch.relu(x @ omega.T) + RELU_EPSILON
        y = x / self.shape.head_dim**0.25
        if self.options.kind == "hyperbolic":
            omega = torch.cat([omega, -omega])
        return torch.exp(y @ omega.T - y.square().sum(-1, keepdim=True) / 2) / float(omega.shape[0] ** 0.5)

    # The map

    def feature_map(self) -> FeatureMap:
        return self._map(self.projection)

    def _map(self, rows: Projection) -> FeatureMap:
        """The map over a copy of the rows: a redraw between forward and backward must not change the backward."""
        if self.options.kind == "relu":
            return Relu(RELU_EPSILON, rows.clone())
        return PositiveExponential(rows, hyperbolic=self.options.kind == "hyperbolic")

    def next_map(self) -> FeatureMap:
        if not self.training or not self.options.redraw_interval or torch.compiler.is_compiling():
            return self.feature_map()
        return self._map(remember(self._next_rows))

    def _next_rows(self) -> Projection:
        if not _recomputing():
            passes = int(self.passes)
            if passes and passes % self.options.redraw_interval == 0:
                self.redraw()
            self.passes += 1
        return self.projection.clone()

    @torch.no_grad()
    def redraw(self) -> None:
        """Replace the rows by new ones from torch's generator."""
        self.projection.copy_(self._draw())

    def _draw(self) -> Projection:
        options = self.options
        return draw_rows(
            options.features, self.shape.head_dim, orthogonal=options.orthogonal, regularised=options.regularised
        )

    def kept_by_map(self, queries: int, keys: int) -> int:
        return self.feature_map().width(self.shape.head_dim) * self.shape.head_dim  # the copy of the rows


def draw_rows(features: int, head_dim: int, *, orthogonal: bool = True, regularised: bool = False) -> Projection:
    """Rows ω from torch's generator; each one is N(0, I) distributed unless regularised."""
    if orthogonal:
        groups = -(-features // head_dim)
        rows = haar(groups, head_dim).flatten(0, 1)[:features]
    else:
        rows = torch.nn.functional.normalize(torch.randn(features, head_dim, dtype=torch.float64), dim=-1)
    if regularised:
        lengths = torch.full((features, 1), head_dim**0.5, dtype=torch.float64)
    else:
        lengths = torch.randn(features, head_dim, dtype=torch.float64).norm(dim=-1, keepdim=True)
    return (rows * lengths).to(torch.get_default_dtype())


def haar(count: int, size: int) -> Tensor:
    """Orthogonal matrices (count, size, size) from the uniform distribution.

    Q of a QR decomposition is not uniform, because LAPACK chooses signs by its own rule; the kernel estimate would be
    biased. With signs that make the diagonal of R positive it is uniform (Mezzadri 2007).
    """
    q, r = torch.linalg.qr(torch.randn(count, size, size, dtype=torch.float64))
    uniform: Tensor = q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).unsqueeze(-2)
    return uniform


def _recomputing() -> bool:
    """Whether this runs inside a backward pass, as the recomputation of a checkpoint does."""
    return bool(torch._C._current_graph_task_id() != -1)
