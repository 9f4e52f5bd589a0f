"""Two separable convolutions over time with an activation between them, instead of a feed-forward layer.

An alternative of the Universal Transformer (Dehghani et al. 2018, section 2.1). The sizes are those of the authors'
tensor2tensor: a depthwise kernel of 3 and a projection to `hidden`, then a kernel of 5 and a projection back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

from longspan.attention.state import State
from longspan.errors import InvalidOption
from longspan.nn.dropout import Dropout
from longspan.nn.feedforward import PLAIN
from longspan.nn.linear import Linear
from longspan.precision import state_type
from longspan.shapes import Hidden, KeyMask


@dataclass(frozen=True)
class ConvolutionState(State):
    """The last inputs of both convolutions that the next tokens need: (batch, kernel - 1, width)."""

    first: Tensor
    second: Tensor


class SeparableConvolution(nn.Module):
    """`causal` reads earlier tokens only and can decode; otherwise both sides. Masked positions count as zeros."""

    def __init__(
        self,
        width: int,
        hidden: int,
        activation: str = "relu",
        *,
        causal: bool,
        kernels: tuple[int, int] = (3, 5),
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if activation not in PLAIN:
            raise InvalidOption(f"a convolution has no gate; activation must be one of {', '.join(PLAIN)}")
        if min(kernels) < 1 or not all(kernel % 2 for kernel in kernels):
            raise InvalidOption(f"kernels must be odd, so that they have a middle, not {kernels}")
        self.activation, self.causal, self.kernels = activation, causal, kernels
        # One filter per channel; the biases are in the projections.
        self.first = nn.Parameter(torch.empty(width, 1, kernels[0]))
        self.second = nn.Parameter(torch.empty(hidden, 1, kernels[1]))
        self.inner = Linear(width, hidden, bias=bias)
        self.outer = Linear(hidden, width, bias=bias)
        self.dropout = Dropout(dropout)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """torch's initialisation of one-channel filters; Xavier for the projections."""
        for filters, kernel in zip((self.first, self.second), self.kernels):
            nn.init.uniform_(filters, -(kernel**-0.5), kernel**-0.5)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Hidden, *, key_mask: KeyMask | None = None) -> Hidden:
        return self._run(x, None, key_mask)[0]

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> ConvolutionState:
        """The state before the first token: zeros."""
        dtype, device = state_type(self, dtype, device)
        rows = (
            torch.zeros(batch, kernel - 1, filters.shape[0], dtype=dtype, device=device)
            for kernel, filters in zip(self.kernels, (self.first, self.second))
        )
        return ConvolutionState(*rows)

    def extend(
        self, x: Hidden, state: ConvolutionState, *, key_mask: KeyMask | None = None
    ) -> tuple[Hidden, ConvolutionState]:
        """The next tokens, any number of them, and the state after them."""
        return self._run(x, state, key_mask)

    def _run(
        self, x: Tensor, state: ConvolutionState | None, key_mask: Tensor | None
    ) -> tuple[Tensor, ConvolutionState]:
        convolved, first = self._along(x, self.first, None if state is None else state.first, key_mask)
        inner = self.dropout(PLAIN[self.activation](self.inner(convolved)))
        convolved, second = self._along(inner, self.second, None if state is None else state.second, key_mask)
        return self.outer(convolved), ConvolutionState(first, second)

    def _along(self, x: Tensor, filters: Tensor, past: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """x convolved over time, and the rows that the next tokens need."""
        if key_mask is not None:
            x = x.masked_fill(~key_mask[..., None], 0.0)
        back = filters.shape[-1] - 1
        if past is not None:
            x = torch.cat([past, x], dim=1)
        else:
            before = back if self.causal else back // 2
            x = pad(x, (0, 0, before, back - before))
        out = conv1d(x.mT, filters, groups=filters.shape[0]).mT
        return out, x[:, x.shape[1] - back :]

    def extra_repr(self) -> str:
        return f"kernels={self.kernels}, activation={self.activation!r}, causal={self.causal}"


__all__ = ["ConvolutionState", "SeparableConvolution"]
