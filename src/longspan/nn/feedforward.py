"""The position-wise feed-forward layer, plain or gated, optionally in chunks of tokens."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from longspan.errors import InvalidOption, UnknownName, suggest
from longspan.nn.dropout import Dropout
from longspan.nn.linear import Linear

Activation = Callable[[Tensor], Tensor]


def gelu_sigmoid(x: Tensor) -> Tensor:
    """x·σ(1.702x), the cheap form of GELU (Hendrycks & Gimpel 2016, section 2)."""
    return x * torch.sigmoid(1.702 * x)


gelu_tanh = partial(functional.gelu, approximate="tanh")

PLAIN: dict[str, Activation] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_sigmoid": gelu_sigmoid,
    "silu": functional.silu,
}
# Shazeer 2020, "GLU Variants Improve Transformer": the activation of one projection times another, unactivated.
GATED: dict[str, Activation] = {
    "glu": torch.sigmoid,
    "reglu": functional.relu,
    "geglu": functional.gelu,
    "geglu_tanh": gelu_tanh,
    "swiglu": functional.silu,
}


class FeedForward(nn.Module):
    """outer(dropout(activation(inner(x)))) for each token.

    A gated layer keeps both inner projections in one matrix, the gate's rows first: one product is faster than two.
    `chunk` > 0 processes that many tokens at a time, with the same result, and computes the wide inner activations
    again in the backward pass, so that only one chunk of them is in memory (Kitaev et al. 2020, section 3).
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: str = "relu",
        *,
        bias: bool = True,
        dropout: float = 0.0,
        chunk: int = 0,
    ) -> None:
        super().__init__()
        known = PLAIN | GATED
        if activation not in known:
            raise UnknownName(f"no activation is called {activation!r}; {suggest(activation, known)}")
        if chunk < 0:
            raise InvalidOption(f"chunk must be 0 (no chunks) or a number of tokens, got {chunk}")
        self.activation = activation
        self.chunk = chunk
        self.gated = activation in GATED
        self._activate = known[activation]
        self.inner = Linear(width, hidden * (2 if self.gated else 1), bias=bias)
        self.outer = Linear(hidden, width, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch length width"]) -> Float[Tensor, "*batch length width"]:
        # A loop over chunks would fix the length in a traced graph.
        if not self.chunk or torch.compiler.is_compiling() or x.shape[-2] <= self.chunk:
            return self._compute(x)
        draws = self.training and self.dropout.p > 0
        pieces = [
            checkpoint(self._compute, piece, use_reentrant=False, preserve_rng_state=draws)
            if torch.is_grad_enabled()
            else self._compute(piece)
            for piece in x.split(self.chunk, dim=-2)
        ]
        return torch.cat(pieces, dim=-2)

    def _compute(self, x: Tensor) -> Tensor:
        inner = self.inner(x)
        if self.gated:
            gate, value = inner.chunk(2, dim=-1)
            inner = self._activate(gate) * value
        else:
            inner = self._activate(inner)
        out: Tensor = self.outer(self.dropout(inner) if self.training else inner)
        return out

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}, chunk={self.chunk}"


__all__ = ["GATED", "PLAIN", "FeedForward"]
