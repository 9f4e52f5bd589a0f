"""An LSTM layer with a projection (Sak et al. 2014), for rows of unequal length, and with ELMo's clipping."""

import warnings
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from longspan.errors import InvalidOption
from longspan.precision import full_precision, no_recurrent_half
from longspan.shapes import Hidden

LstmState = tuple[Float[Tensor, "batch projection"], Float[Tensor, "batch cells"]]


class ProjectedLstm(nn.Module):
    """torch's LSTM with one layer and one direction, whose output and recurrent state are W·h.

    With `clip`, cells and projections are clamped to ±clip at every step (Peters et al. 2018; 3 in their code). torch's
    fused kernels cannot do that, so it then runs step by step, with the same weights.
    """

    def __init__(self, width: int, cells: int, projection: int, *, clip: float | None = None) -> None:
        super().__init__()
        if projection > cells:
            raise InvalidOption(f"the projection ({projection}) must not be wider than the {cells} cells")
        self.cells, self.projection, self.clip = cells, projection, clip
        # No projection if it is as wide as the cells, as in the authors' code.
        self.lstm = nn.LSTM(width, cells, proj_size=projection if projection < cells else 0, batch_first=True)
        self.reset_parameters()

    @property
    def _weights(self) -> dict[str, nn.Parameter]:
        """Parameters by torch's names without the suffix `_l0`: there is one layer."""
        return {name.removesuffix("_l0"): parameter for name, parameter in self.lstm.named_parameters()}

    def reset_parameters(self) -> None:
        """The forget gate's bias starts at 1. torch has two biases where one is enough; the second stays zero."""
        weights = self._weights
        for name, parameter in weights.items():
            if name.startswith("weight"):
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)
        with torch.no_grad():
            weights["bias_ih"][self.cells : 2 * self.cells] = 1
        weights["bias_hh"].requires_grad_(False)

    def start(self, batch: int) -> LstmState:
        """The state before the first token: zeros."""
        like = self._weights["weight_hh"]
        return like.new_zeros(batch, self.projection), like.new_zeros(batch, self.cells)

    def forward(
        self, x: Hidden, state: LstmState, lengths: Int[Tensor, " batch"] | None = None
    ) -> tuple[Float[Tensor, "batch length projection"], LstmState]:
        """The output at each position, 0 after a row's end, and the state after the last token of each row."""
        if self.clip is not None:
            return self._stepwise(x, state, lengths, self.clip)
        h, c = state[0][None], state[1][None]
        if lengths is None:
            out, (h, c) = self._fused(x, (h, c))
            return out, (h[0], c[0])
        # Empty rows cannot be packed: they get one token, whose output is discarded.
        packed = pack_padded_sequence(x, lengths.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False)
        out, (h, c) = self._fused(packed, (h, c))
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        real = (lengths > 0)[:, None]
        return out * real[:, None], (h[0].where(real, state[0]), c[0].where(real, state[1]))

    def _fused(self, x: Any, state: tuple[Tensor, Tensor]) -> Any:
        if no_recurrent_half(state[0]):
            with full_precision(state[0]):
                return self._fused(x.to(state[0].dtype), state)
        with warnings.catch_warnings():
            # On CPU torch warns that it uses its own kernel for projections; the user can do nothing about it.
            warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
            return self.lstm(x, state)

    def _stepwise(self, x: Tensor, state: LstmState, lengths: Tensor | None, clip: float) -> tuple[Tensor, LstmState]:
        weights = self._weights
        h, c = state
        outs = []
        for step, projected in enumerate(linear(x, weights["weight_ih"], weights["bias_ih"]).unbind(1)):
            gates = projected + linear(h, weights["weight_hh"], weights["bias_hh"])
            write, forget, value, output = gates.chunk(4, dim=-1)
            new_c = (forget.sigmoid() * c + write.sigmoid() * value.tanh()).clamp(-clip, clip)
            new_h = output.sigmoid() * new_c.tanh()
            if self.projection < self.cells:
                new_h = linear(new_h, weights["weight_hr"])
            new_h = new_h.clamp(-clip, clip)
            if lengths is None:
                out, h, c = new_h, new_h, new_c
            else:
                real = (step < lengths)[:, None]
                out, h, c = new_h * real, new_h.where(real, h), new_c.where(real, c)
            outs.append(out)
        return torch.stack(outs, dim=1), (h, c)

    def extra_repr(self) -> str:
        return f"cells={self.cells}, projection={self.projection}, clip={self.clip}"


__all__ = ["LstmState", "ProjectedLstm"]
