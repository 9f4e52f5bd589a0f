"""Feature maps φ of linear attention, which replaces exp(q·k) or another kernel by φ(q)·φ(k).

`kernels/linear_scan` applies a map to some positions at a time and does not store the features. So a map defines three
things: the features of a chunk (written to a buffer if one is given, otherwise a plain differentiable expression), the
gradient of the input from the gradient of the features, and the cost.

Exponential maps return the *logarithms* of their features instead, so that the scan can choose the scale: a running
maximum for keys, each row's own maximum for queries. A scale is a constant that cancels, or is multiplied back at the
end; it never carries a gradient.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from longspan.errors import InvalidInput, InvalidOption

# "folded": batch and heads in one axis, for `bmm`.
Rows = Float[Tensor, "folded positions head_dim"]
Features = Float[Tensor, "folded positions features"]
Common = Float[Tensor, "folded positions 1"]
Projection = Float[Tensor, "features head_dim"]


class FeatureMap(ABC):
    """A map φ: the features of a chunk, their gradient, their cost."""

    @abstractmethod
    def width(self, head_dim: int) -> int:
        """The number of features of a vector of `head_dim` numbers."""

    @abstractmethod
    def features(self, x: Rows, out: Features | None = None) -> Features:
        """φ(x). With `out`, it may be written there to save an allocation; without, it is differentiable."""

    @abstractmethod
    def pull(self, x: Rows, features: Features, gradient: Features, out: Rows) -> None:
        """Write the gradient of x to `out`, from the gradient of the features; both inputs may be overwritten."""

    def flops(self, positions: int, head_dim: int) -> int:
        """FLOPs of the matrix products in `features`."""
        return 0

    @property
    def learned(self) -> bool:
        """Whether the map has parameters; `pull` gives no gradient for them, so autograd must differentiate it."""
        return False


class ExponentialMap(FeatureMap):
    """A map whose features are exponentials: log φ(x) = exponents(x) + common(x)."""

    @abstractmethod
    def exponents(self, x: Rows, out: Features | None = None) -> Features:
        """The part of log φ(x) that differs between features; written to `out` if given."""

    @abstractmethod
    def common(self, x: Rows) -> Common:
        """The part of log φ(x) that all features of a row share."""

    @abstractmethod
    def pull_exponents(self, x: Rows, features: Features, gradient: Features, out: Rows) -> None:
        """As `pull`, if a factor on a whole row cancels in the result: the common part then has no gradient."""

    def features(self, x: Rows, out: Features | None = None) -> Features:
        return torch.exp(self.exponents(x) + self.common(x))


class EluPlusOne(FeatureMap):
    """φ(x) = elu(x) + 1, positive everywhere (Katharopoulos et al. 2020, section 3.2.1)."""

    def width(self, head_dim: int) -> int:
        return head_dim

    def features(self, x: Rows, out: Features | None = None) -> Features:
        if out is None:  # exp(min(x, 0)) + max(x, 0): the same, but more accurate below zero
            return torch.clamp(x, max=0.0).exp() + functional.relu(x)
        # (max(x, 0) + 1) · elu'(x), where elu'(x) = exp(min(x, 0)) is one fused kernel: twice as fast as `exp`, and it
        # needs no second buffer.
        above = torch.clamp(x, min=0.0, out=out).add_(1.0)
        features: Tensor = torch.ops.aten.elu_backward.grad_input(above, 1.0, 1.0, 1.0, False, x, grad_input=out)
        return features

    def pull(self, x: Rows, features: Features, gradient: Features, out: Rows) -> None:
        # The derivative is 1 above zero, and the feature itself below.
        torch.mul(gradient, features.clamp_(max=1.0), out=out)


class Relu(FeatureMap):
    """φ(x) = relu(Wx) + ε, or relu(x) + ε without a projection (Performer's generalised attention, section 2.2)."""

    def __init__(self, epsilon: float = 1e-3, projection: Projection | None = None) -> None:
        if epsilon < 0:
            raise InvalidOption(f"relu features need epsilon >= 0, got {epsilon}")
        self.epsilon = epsilon
        self.projection = projection

    def width(self, head_dim: int) -> int:
        return head_dim if self.projection is None else _projected(self.projection, head_dim)

    def features(self, x: Rows, out: Features | None = None) -> Features:
        if self.projection is not None:
            x = _project(x, self.projection.to(x.dtype).t(), out)
        return torch.add(functional.relu(x), self.epsilon, out=out)

    def pull(self, x: Rows, features: Features, gradient: Features, out: Rows) -> None:
        gradient.mul_(features > self.epsilon)
        out.copy_(gradient if self.projection is None else _project(gradient, self.projection.to(x.dtype), None))

    def flops(self, positions: int, head_dim: int) -> int:
        return 0 if self.projection is None else 2 * positions * head_dim * self.width(head_dim)

    @property
    def learned(self) -> bool:
        return self.projection is not None and self.projection.requires_grad


class Identity(FeatureMap):
    """φ(x) = x: for retention, and for features that are computed before the call."""

    def width(self, head_dim: int) -> int:
        return head_dim

    def features(self, x: Rows, out: Features | None = None) -> Features:
        return x

    def pull(self, x: Rows, features: Features, gradient: Features, out: Rows) -> None:
        out.copy_(gradient)


class PositiveExponential(ExponentialMap):
    """FAVOR+ (Choromanski et al. 2020, Lemma 1): φ(x) = m^(-1/2)·exp(Wy − ‖y‖²/2) with y = d^(-1/4)·x.

    With rows of W from N(0, I), φ(q)·φ(k) is an unbiased estimate of exp(q·k/√d). The hyperbolic variant adds −W, so
    each row of W gives two features. The mechanism draws the projection.
    """

    def __init__(self, projection: Projection, *, hyperbolic: bool = False) -> None:
        if projection.ndim != 2:
            raise InvalidInput(f"expected a projection of shape (features, head_dim), got {tuple(projection.shape)}")
        self.scale = projection.shape[1] ** -0.25
        rows = torch.cat([projection, -projection]) if hyperbolic else projection
        self.weight = rows.t() * self.scale  # includes the scale of x: (head_dim, features)

    def width(self, head_dim: int) -> int:
        return _projected(self.weight.t(), head_dim)

    def exponents(self, x: Rows, out: Features | None = None) -> Features:
        return _project(x, self.weight.to(x.dtype), out)

    def common(self, x: Rows) -> Common:
        norms = x.square().sum(-1, keepdim=True)
        common: Tensor = norms * (-0.5 * self.scale**2) - 0.5 * math.log(self.weight.shape[1])
        return common

    def pull_exponents(self, x: Rows, features: Features, gradient: Features, out: Rows) -> None:
        out.copy_(_project(gradient.mul_(features), self.weight.to(x.dtype).t(), None))

    def pull(self, x: Rows, features: Features, gradient: Features, out: Rows) -> None:
        pulled = _project(gradient.mul_(features), self.weight.to(x.dtype).t(), None)
        torch.addcmul(pulled, x, gradient.sum(-1, keepdim=True), value=-(self.scale**2), out=out)

    def flops(self, positions: int, head_dim: int) -> int:
        return 2 * positions * head_dim * self.width(head_dim)

    @property
    def learned(self) -> bool:
        return bool(self.weight.requires_grad)


class CallableMap(FeatureMap):
    """A map given as a function of (folded, positions, head_dim), position by position; autograd differentiates it."""

    def __init__(self, function: Callable[[Tensor], Tensor], sample: Rows) -> None:
        """Calls the function once on `sample`, to learn its width and whether it has parameters."""
        self.function = function
        # An exported program has no gradients, and none of its parts may switch them on.
        with nullcontext() if torch.compiler.is_exporting() else torch.enable_grad():
            probe = function(sample.detach())
        if probe.ndim != sample.ndim or probe.shape[:-1] != sample.shape[:-1]:
            shapes = f"{tuple(sample.shape)} to {tuple(probe.shape)}"
            raise InvalidInput(f"a feature map may only change the last dimension; this one went from {shapes}")
        self._width = probe.shape[-1]
        self._learned = probe.requires_grad  # the sample requires no gradient, so a parameter does

    def width(self, head_dim: int) -> int:
        return self._width

    def features(self, x: Rows, out: Features | None = None) -> Features:
        return self.function(x)

    def pull(self, x: Rows, features: Features, gradient: Features, out: Rows) -> None:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (pulled,) = torch.autograd.grad(self.function(x), x, gradient)
        out.copy_(pulled)

    @property
    def learned(self) -> bool:
        return self._learned


def as_feature_map(value: FeatureMap | Callable[[Tensor], Tensor], sample: Rows) -> FeatureMap:
    """A feature map from a feature map or a plain function; `sample` is any chunk of the right dtype and device."""
    return value if isinstance(value, FeatureMap) else CallableMap(value, sample)


def _projected(projection: Projection, head_dim: int) -> int:
    features, expected = projection.shape
    if expected != head_dim:
        raise InvalidInput(f"the projection is for heads of {expected} dimensions, got {head_dim}")
    return features


def _project(x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
    # `matmul` would copy x if it is a slice of a longer sequence; `bmm` does not.
    return torch.bmm(x, weight.expand(x.shape[0], -1, -1), out=out)
