"""Norms by name: layer norm (with or without bias), RMS norm or none, per token over the features.

They are torch's: LayerNorm has the biased variance with epsilon inside the root (Ba et al. 2016), and both sum in
float32 if the input is in half precision.
"""

from collections.abc import Callable

from torch import nn
from torch.nn import LayerNorm, RMSNorm

from longspan.errors import UnknownName, suggest

NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "layer": lambda width, eps: LayerNorm(width, eps=eps),
    "layer_no_bias": lambda width, eps: LayerNorm(width, eps=eps, bias=False),
    "rms": lambda width, eps: RMSNorm(width, eps=eps),
    "none": lambda width, eps: nn.Identity(),
}


def build_norm(kind: str, width: int, eps: float = 1e-5) -> nn.Module:
    """The norm called `kind`, over the last axis of `width` features."""
    if kind not in NORMS:
        raise UnknownName(f"no norm is called {kind!r}; {suggest(kind, NORMS)}")
    return NORMS[kind](width, eps)


__all__ = ["NORMS", "LayerNorm", "RMSNorm", "build_norm"]
