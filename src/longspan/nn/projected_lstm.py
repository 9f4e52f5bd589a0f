"""An LSTM layer with a projection (Sak et al. 2014), for rows of unequal length, and with ELMo's clipping."""

import warnings
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from longspan.errors import InvalidOption
from longspan.precision import full_precision, no_float16
from longspan.shapes import Hidden

LstmState = tuple[Float[Tensor, "batch projection"], Float[Tensor, "batch cells"]]


class ProjectedLstm(nn.Module):
    """torch's LSTM of one layer and one direction; what is said to the next step and the next layer is W·h.

    With `clip`, cells and projections are held to ±clip at every step (Peters et al. 2018; 3 in their code). torch's
    fused kernels cannot do that, so the steps are then taken one by one, with the same weights.
    """

    def __init__(self, width: int, cells: int, projection: int, *, clip: float | None = None) -> None:
        super().__init__()
        if projection > cells:
            raise InvalidOption(f"a projection of {projection} is wider than the {cells} cells it is made from")
        self.cells, self.projection, self.clip = cells, projection, clip
        # As wide as the cells there is no projection, as in the authors' code.
        self.lstm = nn.LSTM(width, cells, proj_size=projection if projection < cells else 0, batch_first=True)
        self.reset_parameters()

    @property
    def _weights(self) -> dict[str, nn.Parameter]:
        """torch's names without their end `_l0`: there is one layer."""
        return {name.removesuffix("_l0"): parameter for name, parameter in self.lstm.named_parameters()}

    def reset_parameters(self) -> None:
        """Forget gates start at 1. torch has two biases where one does; the second stays zero."""
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
        """What is said at each place, and the state after the last one of each row; behind a row's end all is 0."""
        if self.clip is not None:
            return self._stepwise(x, state, lengths, self.clip)
        h, c = state[0][None], state[1][None]
        if lengths is None:
            out, (h, c) = self._fused(x, (h, c))
            return out, (h[0], c[0])
        # Rows without a token cannot be packed: they are given one, and what comes of it is thrown away.
        packed = pack_padded_sequence(x, lengths.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False)
        out, (h, c) = self._fused(packed, (h, c))
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
        real = (lengths > 0)[:, None]
        return out * real[:, None], (h[0].where(real, state[0]), c[0].where(real, state[1]))

    def _fused(self, x: Any, state: tuple[Tensor, Tensor]) -> Any:
        if no_float16(state[0]):
            with full_precision(state[0]):
                return self._fused(x.to(state[0].dtype), state)
        with warnings.catch_warnings():
            # On CPU torch has its own kernel for projections, and says so; there is nothing for the user to do.
            warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
            return self.lstm(x, state)

    def _stepwise(self, x: Tensor, state: LstmState, lengths: Tensor | None, clip: float) -> tuple[Tensor, LstmState]:
        own = self._weights
        h, c = state
        outs = []
        for step, given in enumerate(linear(x, own["weight_ih"], own["bias_ih"]).unbind(1)):
            gates = given + linear(h, own["weight_hh"], own["bias_hh"])
            write, forget, value, say = gates.chunk(4, dim=-1)
            new_c = (forget.sigmoid() * c + write.sigmoid() * value.tanh()).clamp(-clip, clip)
            new_h = say.sigmoid() * new_c.tanh()
            if self.projection < self.cells:
                new_h = linear(new_h, own["weight_hr"])
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
