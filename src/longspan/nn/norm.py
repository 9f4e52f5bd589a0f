"""Norms by name: layer norm (also without bias), RMS norm (also with gains stored as 1 + weight), or none.

They compute as torch's: LayerNorm has the biased variance with epsilon inside the root (Ba et al. 2016), and both sum
in float32 if the input is in half precision.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import LayerNorm
from torch.nn.functional import rms_norm

from longspan.errors import UnknownName, suggest


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` that takes inputs of another type than its gains, as the output of a layer is under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:
            return rms_norm(x, self.normalized_shape, self.weight, self.eps)
        return rms_norm(x.to(self.weight.dtype), self.normalized_shape, self.weight, self.eps).to(x.dtype)


class OffsetRMSNorm(RMSNorm):
    """x / rms(x) · (1 + weight), in float32 if x is in half precision: the weight is 0 at the start (Gemma)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        precise = torch.promote_types(x.dtype, torch.float32)
        return rms_norm(x.to(precise), self.normalized_shape, 1 + self.weight.to(precise), self.eps).to(x.dtype)


NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "layer": lambda width, eps: LayerNorm(width, eps=eps),
    "layer_no_bias": lambda width, eps: LayerNorm(width, eps=eps, bias=False),
    "rms": lambda width, eps: RMSNorm(width, eps=eps),
    "rms_offset": lambda width, eps: OffsetRMSNorm(width, eps=eps),
    "none": lambda width, eps: nn.Identity(),
}


def build_norm(kind: str, width: int, eps: float = 1e-5) -> nn.Module:
    """The norm called `kind`, over the last axis of `width` features."""
    if kind not in NORMS:
        raise UnknownName(f"no norm is called {kind!r}; {suggest(kind, NORMS)}")
    return NORMS[kind](width, eps)


__all__ = ["NORMS", "LayerNorm", "OffsetRMSNorm", "RMSNorm", "build_norm"]
