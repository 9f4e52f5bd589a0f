"""Elman, LSTM and GRU layers that skip padding: a masked step does not change the state.

They wrap torch's layers and add padding anywhere in a row, dropout on every non-recurrent connection (Zaremba et al.
2014), a forget bias, a learned initial state, and an immutable state with the batch first.

torch's GRU applies its reset gate after the recurrent product, tanh(W x + r · (U h)), and not before it as in Cho et
al. 2014; cuDNN and published weights use the former.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from longspan.attention.base import check_some
from longspan.attention.state import State
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.dropout import Dropout
from longspan.nn.embedding import TokenEmbedding
from longspan.precision import full_precision, no_recurrent_half
from longspan.shapes import Hidden, KeyMask

CELLS = ("elman", "lstm", "gru")
Inputs = Float[Tensor, "batch length features"]
FORGET = 1  # torch keeps the gates of an LSTM in the order input, forget, cell, output


@dataclass(frozen=True)
class RecurrentState(State):
    """What the layers remember: `hidden` and, for an LSTM, `cell`; both (batch, layers · directions, width)."""

    hidden: Tensor
    cell: Tensor | None
    length: int = 0  # number of tokens read, padding included

    @property
    def top(self) -> Float[Tensor, "batch width"]:
        """The hidden state of the last layer (of one direction)."""
        return self.hidden[:, -1]


class Recurrent(nn.Module):
    """Layers of one kind of cell, left to right or, for an encoder, in both directions.

    >>> layers = Recurrent(128, 256, cell="lstm", layers=2, dropout=0.5, forget_bias=1.0)
    >>> y, state = layers(x, key_mask=mask)
    >>> y, state = layers(more, state.detach())

    The output has `out_width` features: the width, or twice that if bidirectional. At a masked position it is the
    unchanged state, so padding on the left, on the right or in the middle changes no real token's output.
    """

    def __init__(
        self,
        features: int,
        width: int,
        *,
        cell: str = "lstm",
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        forget_bias: float | None = None,
        learned_start: bool = False,
        activation: str = "tanh",
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise InvalidOption(f"cell must be one of {', '.join(CELLS)}, not {cell!r}")
        if forget_bias is not None and cell != "lstm":
            raise InvalidOption(f"forget_bias needs a forget gate, which only cell lstm has, not {cell}")
        if activation not in ("tanh", "relu") or (activation != "tanh" and cell != "elman"):
            raise InvalidOption(f"activation must be tanh or, for cell elman, relu; not {activation!r} for {cell}")
        self.cell, self.width, self.bidirectional = cell, width, bidirectional
        self.directions = 2 if bidirectional else 1
        self.out_width = width * self.directions
        self.forget_bias = forget_bias
        between = dropout if layers > 1 else 0.0  # torch warns if there is only one layer
        sizes: Any = {"input_size": features, "hidden_size": width, "num_layers": layers}
        modes: Any = {"batch_first": True, "bidirectional": bidirectional, "dropout": between}
        self.layers: nn.RNNBase
        if cell == "elman":
            self.layers = nn.RNN(**sizes, **modes, nonlinearity=activation)
        else:
            self.layers = (nn.LSTM if cell == "lstm" else nn.GRU)(**sizes, **modes)
        self.dropout = Dropout(dropout)
        rows = layers * self.directions
        self.first_hidden = nn.Parameter(torch.zeros(rows, width)) if learned_start else None
        self.first_cell = nn.Parameter(torch.zeros(rows, width)) if learned_start and cell == "lstm" else None
        self.set_forget_bias()

    @torch.no_grad()
    def set_forget_bias(self) -> None:
        """torch has two biases in every gate; their sum becomes `forget_bias`."""
        if self.forget_bias is None:
            return
        for name, bias in self.layers.named_parameters():
            if name.startswith("bias"):
                value = self.forget_bias if name.startswith("bias_ih") else 0.0
                bias.view(4, self.width)[FORGET] = value

    def start(self, batch: int) -> RecurrentState:
        """The state before the first token: zero, or learned."""
        like = next(self.layers.parameters())
        rows = self.layers.num_layers * self.directions
        zero = like.new_zeros(batch, rows, self.width)
        hidden = zero if self.first_hidden is None else self.first_hidden.expand(batch, -1, -1)
        if self.cell != "lstm":
            return RecurrentState(hidden, None)
        return RecurrentState(hidden, zero if self.first_cell is None else self.first_cell.expand(batch, -1, -1))

    def forward(
        self, x: Inputs, state: RecurrentState | None = None, *, key_mask: KeyMask | None = None
    ) -> tuple[Hidden, RecurrentState]:
        """The top layer's state at every position, and the state of all layers after the last one."""
        self._check(x, state, key_mask)
        before = self.start(len(x)) if state is None else state
        x = self.dropout(x)
        if key_mask is None:
            y, after = self._run(x, before)
        elif x.shape[1] == 1:
            y, after = self._step(x, before, key_mask)
        else:
            y, after = self._skip(x, before, key_mask)
        return self.dropout(y), replace(after, length=before.length + x.shape[1])

    def _run(self, x: Any, before: RecurrentState) -> tuple[Any, RecurrentState]:
        """Runs torch's layers; `x` may be a packed sequence, and then the output is one too."""
        if no_recurrent_half(before.hidden):
            with full_precision(before.hidden):
                return self._run(x.to(before.hidden.dtype), before)
        hidden = before.hidden.transpose(0, 1).contiguous()
        if before.cell is None:
            y, hidden = self.layers(x, hidden)
            return y, RecurrentState(hidden.transpose(0, 1), None)
        y, (hidden, cell) = self.layers(x, (hidden, before.cell.transpose(0, 1).contiguous()))
        return y, RecurrentState(hidden.transpose(0, 1), cell.transpose(0, 1))

    def _step(self, x: Tensor, before: RecurrentState, real: Tensor) -> tuple[Tensor, RecurrentState]:
        """One position, as in decoding: cheaper than packing it."""
        y, after = self._run(x, before)
        return torch.where(real[..., None], y, self._last(before).flatten(1)[:, None]), _choose(real, after, before)

    def _skip(self, x: Tensor, before: RecurrentState, real: Tensor) -> tuple[Tensor, RecurrentState]:
        """Packs the real tokens of each row, and scatters their outputs back to their positions."""
        seen = real.cumsum(1)
        lengths = seen[:, -1]
        order = (~real).to(torch.uint8).argsort(dim=1, stable=True)
        front = x.gather(1, order[..., None].expand_as(x))
        # An empty row cannot be packed: it gets one token, whose output is discarded.
        packed = pack_padded_sequence(front, lengths.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False)
        packed_outputs, after = self._run(packed, before)
        outputs, _ = pad_packed_sequence(packed_outputs, batch_first=True)
        # The state at a masked position is that of the previous real one or, in the backward direction, of the next.
        behind = torch.where(seen - real.long() < lengths[:, None], seen - real.long() + 1, 0)
        ways = zip(outputs.split(self.width, -1), self._last(before).unbind(1), (seen, behind))
        placed = [
            torch.cat([first[:, None], way], 1).gather(1, index[..., None].expand(-1, -1, self.width))
            for way, first, index in ways
        ]
        return torch.cat(placed, -1), _choose((lengths > 0)[:, None], after, before)

    def _last(self, state: RecurrentState) -> Tensor:
        """The top layer's state in each direction: (batch, directions, width)."""
        return state.hidden[:, -self.directions :]

    def _check(self, x: Tensor, state: RecurrentState | None, key_mask: Tensor | None) -> None:
        features = self.layers.input_size
        if x.dim() != 3 or x.shape[-1] != features:
            raise InvalidInput(f"x must be (batch, length, features {features}), not {tuple(x.shape)}")
        if x.shape[1] == 0:
            raise InvalidInput("x has no tokens; give at least one")
        check_some("x", x)
        if state is not None and self.bidirectional:
            raise Unsupported("bidirectional layers cannot continue from a state; give them the whole text")
        if state is not None and len(state.hidden) != len(x):
            raise InvalidInput(f"the state is of batch {len(state.hidden)}, and x of {len(x)}")
        if key_mask is not None:
            check_mask("key_mask", key_mask, x.shape[:2])


def _choose(rows: Tensor, new: RecurrentState, old: RecurrentState) -> RecurrentState:
    """The new state in the rows that read a token, the old state in the others."""
    pick = rows[..., None]
    cell = None if new.cell is None or old.cell is None else torch.where(pick, new.cell, old.cell)
    return RecurrentState(torch.where(pick, new.hidden, old.hidden), cell)


def check_mask(name: str, mask: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses a padding mask that is not boolean or does not have the shape of the tokens."""
    if mask.dtype != torch.bool:
        raise InvalidInput(f"{name} must be boolean, True where a token is real, not {mask.dtype}; try {name}.bool()")
    if tuple(mask.shape) != tuple(shape):
        raise InvalidInput(f"{name} must be (batch, length) {tuple(shape)}, not {tuple(mask.shape)}")


def reversal(real: KeyMask) -> Tensor:
    """The index that reverses the real tokens of each row and leaves the padding where it is; its own inverse."""
    rank = real.cumsum(1) - 1
    order = (~real).to(torch.uint8).argsort(dim=1, stable=True)  # the indices of the real tokens, in order
    mirrored = order.gather(1, (rank[:, -1:] - rank).clamp(0, real.shape[1] - 1))
    return torch.where(real, mirrored, torch.arange(real.shape[1], device=real.device))


@torch.no_grad()
def initialise_uniform(model: nn.Module, bound: float) -> None:
    """Every weight and bias uniform in ±bound, as in the papers of recurrent models.

    Forget biases, the zero row of padding, and scalars (a key strength) keep their initial values.
    """
    for parameter in model.parameters():
        if parameter.dim():
            nn.init.uniform_(parameter, -bound, bound)
    keep_starts(model)


@torch.no_grad()
def keep_starts(model: nn.Module) -> None:
    """Restores the fixed initial values of recurrent layers and embeddings after a random initialisation."""
    for module in model.modules():
        if isinstance(module, Recurrent):
            module.set_forget_bias()
            for first in (module.first_hidden, module.first_cell):
                if first is not None:
                    nn.init.zeros_(first)
        elif isinstance(module, TokenEmbedding) and module.padding is not None:
            module.weight[module.padding] = 0


__all__ = [
    "CELLS",
    "Recurrent",
    "RecurrentState",
    "check_mask",
    "initialise_uniform",
    "keep_starts",
    "reversal",
]
