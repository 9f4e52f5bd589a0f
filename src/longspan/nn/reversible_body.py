"""A reversible stack of blocks, with the activation memory of one block (Kitaev et al. 2020, section 3).

    y1 = x1 + Attention(norm(x2))
    y2 = x2 + FeedForward(norm(y1))

Both streams start as the embedding and have its width. At the end the released code concatenates them and normalises
over twice the width, so the output layer is twice as wide: merge="concat". Their mean, merge="mean", has the width of
the embedding, so the output layer can be tied to it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longspan.attention.state import State
from longspan.errors import InvalidInput, UnknownName, suggest
from longspan.nn.dropout import Dropout
from longspan.nn.inputs import NO_INPUTS, BlockInputs
from longspan.nn.multihead import MultiHead, MultiHeadState
from longspan.nn.norm import build_norm
from longspan.nn.positions import Positions
from longspan.nn.reversible import ReversibleStack
from longspan.nn.stack import Body, check_streams
from longspan.shapes import Hidden, KeyMask

MERGES = ("concat", "mean")


@dataclass(frozen=True)
class ReversibleState(State):
    """The state of each layer, and the number of tokens read so far."""

    layers: tuple[MultiHeadState, ...]
    length: int


class _Mix(nn.Module):
    """F: dropout(attention(norm(x))). A reversible stack passes tensors only, so streams come in the order `names`."""

    def __init__(self, mixer: MultiHead, norm: nn.Module, dropout: float, names: Sequence[str]) -> None:
        super().__init__()
        self.mixer, self.norm, self.dropout, self.names = mixer, norm, Dropout(dropout), tuple(names)

    def forward(
        self, x: Hidden, key_mask: KeyMask | None, positions: Positions | None, *streams: Tensor | None
    ) -> Hidden:
        named = self._read_here(dict(zip(self.names, streams)))
        out: Tensor = self.dropout(self.mixer(self.norm(x), key_mask=key_mask, streams=named, positions=positions))
        return out

    def extend(self, x: Hidden, state: MultiHeadState, inputs: BlockInputs) -> tuple[Hidden, MultiHeadState]:
        streams = self._read_here(inputs.streams or {})
        out, after = self.mixer.extend(
            self.norm(x), state, key_mask=inputs.key_mask, streams=streams, positions=inputs.positions
        )
        return self.dropout(out), after

    def _read_here(self, streams: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        read = {stream.name for stream in self.mixer.mechanism.streams}
        return {name: tensor for name, tensor in streams.items() if tensor is not None and name in read}


class _Change(nn.Module):
    """G: dropout(feedforward(norm(x)))."""

    def __init__(self, feedforward: nn.Module, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.feedforward, self.norm, self.dropout = feedforward, norm, Dropout(dropout)

    def forward(self, x: Hidden) -> Hidden:
        out: Tensor = self.dropout(self.feedforward(self.norm(x)))
        return out


class ReversibleBody(Body):
    """Pairs of a mixer and a feed-forward layer in reversible residual connections, with the methods of a `Stack`."""

    def __init__(
        self,
        layers: Sequence[tuple[MultiHead, nn.Module]],
        *,
        merge: str = "concat",
        norm: str = "layer",
        eps: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        if merge not in MERGES:
            raise UnknownName(f"no merge is called {merge!r}; {suggest(merge, MERGES)}")
        width = layers[0][0].width
        super().__init__(2 * width if merge == "concat" else width)
        self.merge = merge
        streams = {s.name for mixer, _ in layers for s in mixer.mechanism.streams if s.kind in ("mask", "ids")}
        self.names = tuple(sorted(streams))
        self.stack = ReversibleStack(
            (
                _Mix(mixer, build_norm(norm, width, eps), dropout, self.names),
                _Change(feedforward, build_norm(norm, width, eps), dropout),
            )
            for mixer, feedforward in layers
        )
        self.norm = build_norm(norm, self.out_width, eps)

    def forward(self, x: Hidden, inputs: BlockInputs = NO_INPUTS) -> Hidden:
        self._check(inputs)
        streams = inputs.streams or {}
        tensors = (inputs.key_mask, inputs.positions, *(streams.get(name) for name in self.names))
        return self._merged(*self.stack(x, x, *tensors))

    def start(
        self,
        batch: int,
        inputs: BlockInputs = NO_INPUTS,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> ReversibleState:
        """The state before the first token."""
        self._check(inputs)
        self._check_align(inputs)
        return ReversibleState(tuple(mix.mixer.start(batch, dtype=dtype, device=device) for mix, _ in self.pairs()), 0)

    def extend(
        self, x: Hidden, state: ReversibleState, inputs: BlockInputs = NO_INPUTS
    ) -> tuple[Hidden, ReversibleState]:
        """The next tokens, any number of them, and the state after them."""
        self._check(inputs)
        x1, x2, layers = x, x, []
        for (mix, change), before in zip(self.pairs(), state.layers):
            mixed, after = mix.extend(x2, before, inputs)
            x1 = x1 + mixed
            x2 = x2 + change(x1)
            layers.append(after)
        return self._merged(x1, x2), ReversibleState(tuple(layers), state.length + x.shape[1])

    def pairs(self) -> Iterator[tuple[_Mix, _Change]]:
        yield from self.stack._pairs()

    def _merged(self, x1: Tensor, x2: Tensor) -> Tensor:
        out: Tensor = self.norm(torch.cat([x1, x2], -1) if self.merge == "concat" else (x1 + x2) / 2)
        return out

    def _check(self, inputs: BlockInputs) -> None:
        if inputs.context is not None:
            raise InvalidInput("reversible layers have no cross-attention: leave out context")
        check_streams((mix.mixer.mechanism for mix, _ in self.pairs()), inputs.streams)


__all__ = ["MERGES", "ReversibleBody", "ReversibleState"]
