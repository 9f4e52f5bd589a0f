"""ELMo (Peters et al. 2018): two language models, one each way, over vectors of words made from their characters.

`Elmo` is the pair of language models (the biLM), `ElmoMix` the weighted sum of its layers that a task learns, and
`ElmoVectors` a biLM that stays as it is, with the mixes of one task.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from longspan import config
from longspan.attention.state import State
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Ids, Mask, Model
from longspan.nn.characters import CharacterEncoder, Characters
from longspan.nn.dropout import Dropout
from longspan.nn.loss import IGNORED, chunked_cross_entropy
from longspan.nn.projected_lstm import LstmState, ProjectedLstm
from longspan.nn.sampled_softmax import LogUniform, sampled_cross_entropy
from longspan.shapes import Hidden

Layers = Float[Tensor, "batch layers length both"]  # the token layer first; forward half, then backward half


@dataclass(frozen=True)
class ElmoState(State):
    """What each layer of each direction holds after the last sentence it read."""

    forward: tuple[LstmState, ...]
    backward: tuple[LstmState, ...]

    def detach(self) -> Self:
        """The same values without their history: training goes back to where the batch begins, no further."""
        forward, backward = (tuple((h.detach(), c.detach()) for h, c in way) for way in (self.forward, self.backward))
        return type(self)(forward, backward)


@dataclass(frozen=True)
class ElmoOutput:
    """Losses of the two directions over `targets` words each; batches add up, and then are divided once."""

    forward: Float[Tensor, ""]  # sums, in nats
    backward: Float[Tensor, ""]
    targets: int

    def __add__(self, other: "ElmoOutput") -> "ElmoOutput":
        return ElmoOutput(self.forward + other.forward, self.backward + other.backward, self.targets + other.targets)

    @property
    def loss(self) -> Float[Tensor, ""]:
        """What is minimised (section 3.1, equation for both directions jointly), per prediction."""
        return (self.forward + self.backward) / max(2 * self.targets, 1)

    @property
    def forward_perplexity(self) -> float:
        """Per word, of the next word given those before it."""
        return float((self.forward.detach() / max(self.targets, 1)).exp())

    @property
    def backward_perplexity(self) -> float:
        """Per word, of a word given those after it."""
        return float((self.backward.detach() / max(self.targets, 1)).exp())


class _OneWay(nn.Module):
    """The LSTM layers of one direction; every layer but the first is added to what it reads (section 3.4)."""

    def __init__(self, options: "Elmo.Options") -> None:
        super().__init__()
        width = options.projection
        layers = [ProjectedLstm(width, options.cells, width, clip=options.clip) for _ in range(options.layers)]
        self.layers = nn.ModuleList(layers)
        self.dropout = Dropout(options.dropout)

    def start(self, batch: int) -> tuple[LstmState, ...]:
        return tuple(layer.start(batch) for layer in self.layers if isinstance(layer, ProjectedLstm))

    def forward(
        self, x: Hidden, states: tuple[LstmState, ...], lengths: Int[Tensor, " batch"] | None
    ) -> tuple[list[Tensor], tuple[LstmState, ...]]:
        outs, after = [], []
        for index, (layer, state) in enumerate(zip(self.layers, states)):
            x = self.dropout(x)
            out, state = layer(x, state, lengths)
            x = out if index == 0 else out + x
            outs.append(x)
            after.append(state)
        return outs, tuple(after)


class Elmo(Model):
    """Two language models, one each way, whose layers are vectors of words in their context (the biLM).

    Layer j at word k is [what the forward LM says after reading word k; the same of the backward LM].
    So features at k have read word k itself; the word that the forward half predicts is k + 1, the backward half k - 1.
    Sentences are whole rows, with `<S>` and `</S>` around them where those are to be predicted too.

    State is carried from batch to batch only if it is passed on: `layers, state = model.read(…, state=state)`. It is
    how the authors ran it, and makes each result depend on what was read before, in what order, in the same row.
    """

    name = "elmo"
    paper = "Peters et al. 2018"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        vocabulary: int | None = option(
            None, "words that are predicted, by falling frequency where sampled; none: features only", low=2
        )
        layers: int = option(2, "LSTM layers in each direction", low=1)
        cells: int = option(4096, "LSTM cells of a layer", low=1)
        projection: int = option(512, "width of word vectors and of what a layer says", low=1)
        clip: float | None = option(3.0, "bound of cells and projections; none: no bound, and faster", low=1e-6)
        filters: tuple[int, ...] = option(
            (32, 32, 64, 128, 256, 512, 1024), "convolution maps of widths 1, 2, 3 …", low=1
        )
        character_width: int = option(16, "width of character vectors", low=1)
        characters: int = option(50, "characters of a word, with its two marks", low=3)
        highways: int = option(2, "highway layers over the convolutions", low=0)
        dropout: float = option(0.1, "on what each LSTM layer and the output layer read", low=0, high=0.999)
        sampled: int | None = option(
            None, "words that training compares with (8192 in the paper); none: the whole vocabulary", low=1
        )

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.tokens = CharacterEncoder(
            options.projection,
            filters=options.filters,
            character_width=options.character_width,
            highways=options.highways,
            characters=options.characters,
        )
        self.forward_lm = _OneWay(options)
        self.backward_lm = _OneWay(options)
        self.dropout = Dropout(options.dropout)
        self.head: nn.Linear | None = None
        self.sampler: LogUniform | None = None
        if options.vocabulary is not None:
            self.head = nn.Linear(options.projection, options.vocabulary)
            nn.init.normal_(self.head.weight, std=options.projection**-0.5)
            nn.init.zeros_(self.head.bias)
        if options.sampled is not None:
            if options.vocabulary is None:
                raise InvalidOption("elmo: sampled is for the output layer, and there is none; give vocabulary")
            self.sampler = LogUniform(options.vocabulary, options.sampled)

    def start(self, batch: int) -> ElmoState:
        """The state before the first sentence."""
        return ElmoState(self.forward_lm.start(batch), self.backward_lm.start(batch))

    def forward(self, characters: Characters, *, key_mask: Mask | None = None) -> Layers:
        """All layers, each read from nothing but its own row; 0 where words are padding."""
        return self.read(characters, key_mask=key_mask)[0]

    def read(
        self, characters: Characters, *, key_mask: Mask | None = None, state: ElmoState | None = None
    ) -> tuple[Layers, ElmoState]:
        """All layers, and the state after each direction's last word."""
        x = self.tokens(characters)
        batch, length, _ = x.shape
        self._check_mask(key_mask, batch, length)
        state = self.start(batch) if state is None else state
        if len(state.forward[0][0]) != batch:
            raise InvalidInput(f"the state is of {len(state.forward[0][0])} rows, and the batch has {batch}")
        onward, back, lengths = _orders(key_mask, length)
        forward, after_forward = self.forward_lm(_take(x, onward), state.forward, lengths)
        backward, after_backward = self.backward_lm(_take(x, back), state.backward, lengths)
        # Every layer goes back to the places its words came from.
        ways = [
            torch.stack([x, *(_put(layer, order) for layer in layers)], dim=1)
            for layers, order in ((forward, onward), (backward, back))
        ]
        layers = torch.cat(ways, dim=-1)
        if key_mask is not None:
            layers = layers.masked_fill(~key_mask[:, None, :, None], 0)
        return layers, ElmoState(after_forward, after_backward)

    def loss(
        self,
        characters: Characters,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        generator: torch.Generator | None = None,
    ) -> ElmoOutput:
        """Both directions' losses on the words `ids` that `characters` spell."""
        return self.score(self(characters, key_mask=key_mask), ids, key_mask=key_mask, generator=generator)

    def score(
        self,
        layers: Layers,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        generator: torch.Generator | None = None,
    ) -> ElmoOutput:
        """The losses from layers that `read` gave. Both directions share the output layer.

        With `sampled`, training compares with sampled words, drawn by `generator`; evaluation always with all of them.
        """
        if self.head is None:
            raise InvalidInput("this elmo has no output layer; build it with vocabulary, the number of words")
        if ids.shape != layers[:, 0, :, 0].shape:
            raise InvalidInput(f"expected one id per word, {tuple(layers[:, 0, :, 0].shape)}, got {tuple(ids.shape)}")
        self._check_mask(key_mask, *ids.shape)
        real = torch.ones_like(ids, dtype=torch.bool) if key_mask is None else key_mask
        outside = real & ((ids < 0) | (ids >= self.head.out_features))
        if outside.any():
            row, column = outside.nonzero()[0].tolist()
            raise InvalidInput(
                f"expected word ids in 0..{self.head.out_features - 1}, "
                f"got {int(ids[row, column])} in sentence {row} at place {column}"
            )
        order, _, _ = _orders(key_mask, ids.shape[1])
        ids = ids.masked_fill(~real, IGNORED)
        ids = ids if order is None else ids.gather(1, order)
        forward, backward = _take(layers[:, -1], order).chunk(2, dim=-1)
        targets = int((ids[:, 1:] != IGNORED).sum())
        after, before = ids[:, 1:], ids[:, :-1].masked_fill(ids[:, 1:] == IGNORED, IGNORED)
        return ElmoOutput(
            self._sum(forward[:, :-1], after, generator), self._sum(backward[:, 1:], before, generator), targets
        )

    def _sum(self, x: Hidden, targets: Ids, generator: torch.Generator | None) -> Float[Tensor, ""]:
        assert self.head is not None
        x, weight, bias = self.dropout(x), self.head.weight, self.head.bias
        if self.training and self.sampler is not None:
            rows, wanted = x.flatten(0, 1), targets.flatten()
            return sampled_cross_entropy(rows, weight, wanted, bias, sampler=self.sampler, generator=generator)
        return chunked_cross_entropy(x, weight, targets, bias) * (targets != IGNORED).sum()

    def _check_mask(self, key_mask: Tensor | None, batch: int, length: int) -> None:
        if key_mask is not None and (key_mask.shape != (batch, length) or key_mask.dtype != torch.bool):
            came = f"{tuple(key_mask.shape)} of {key_mask.dtype}"
            raise InvalidInput(f"expected key_mask ({batch}, {length}) of torch.bool, True where real, got {came}")


def _orders(key_mask: Tensor | None, length: int) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """In what order each direction reads the places: real words first, padding behind them, and how many are real.

    The backward order turns round the real words alone. Turning the whole row would have it read the padding first.
    """
    if key_mask is None:
        return None, torch.arange(length - 1, -1, -1)[None], None
    lengths = key_mask.sum(1)
    onward = (~key_mask).long().argsort(dim=1, stable=True)
    places = torch.arange(length, device=key_mask.device)
    turned = lengths[:, None] - 1 - places
    return onward, onward.gather(1, turned.where(turned >= 0, places)), lengths


def _take(x: Hidden, order: Tensor | None) -> Hidden:
    """x[:, order], row by row."""
    if order is None:
        return x
    return x.gather(1, order.to(x.device)[:, :, None].expand(*x.shape))


def _put(x: Hidden, order: Tensor | None) -> Hidden:
    """The inverse of `_take`."""
    return x if order is None else _take(x, order.argsort(dim=1))


class ElmoMix(nn.Module):
    """gamma · sum over j of softmax(w)_j · h_j (section 3.2), and the penalty on w that keeps it near the plain mean.

    With `norm`, each layer is normalised first, token by token. (The authors' code takes mean and variance over the
    whole batch, which would let other rows change a word's vector.)
    """

    def __init__(self, layers: int, *, norm: bool = False, penalty: float = 0.001, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.penalty = norm, penalty
        self.weight = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.dropout = Dropout(dropout)

    @property
    def auxiliary_loss(self) -> Float[Tensor, ""]:
        """penalty · ‖w‖², for the task's loss."""
        return self.penalty * self.weight.square().sum()

    def forward(self, layers: Layers) -> Float[Tensor, "batch length both"]:
        if layers.shape[1] != len(self.weight):
            raise InvalidInput(f"this mixes {len(self.weight)} layers, and {layers.shape[1]} were given")
        if self.norm:
            layers = layer_norm(layers, layers.shape[-1:])
        mixed: Tensor = self.dropout(self.gamma * torch.einsum("j,bjld->bld", self.weight.softmax(0), layers))
        return mixed

    def extra_repr(self) -> str:
        return f"layers={len(self.weight)}, norm={self.norm}, penalty={self.penalty}"


class ElmoVectors(nn.Module):
    """A frozen biLM and `mixes` mixes of its layers: one for a task's input, another perhaps for its output.

    Only the mixes learn. The biLM stays in evaluation mode whatever the task around it is in.
    """

    def __init__(
        self, bilm: Elmo, *, mixes: int = 1, norm: bool = False, penalty: float = 0.001, dropout: float = 0.5
    ) -> None:
        super().__init__()
        if mixes < 1:
            raise InvalidOption(f"mixes must be at least 1, not {mixes}")
        self.bilm = bilm.requires_grad_(False).eval()
        self.mixes = nn.ModuleList(
            ElmoMix(bilm.options.layers + 1, norm=norm, penalty=penalty, dropout=dropout) for _ in range(mixes)
        )

    @property
    def width(self) -> int:
        """Of each vector: both directions' projections."""
        return 2 * self.bilm.options.projection

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.bilm.eval()
        return self

    def forward(self, characters: Characters, *, key_mask: Mask | None = None) -> Sequence[Tensor]:
        """(batch, length, width) from each mix; the task concatenates it to its own vectors."""
        with torch.no_grad():
            layers = self.bilm(characters, key_mask=key_mask)
        return tuple(mix(layers) for mix in self.mixes)


__all__ = ["Elmo", "ElmoMix", "ElmoOutput", "ElmoState", "ElmoVectors"]
