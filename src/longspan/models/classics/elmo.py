"""ELMo (Peters et al. 2018): two language models, one each way, over vectors of words made from their characters.

`Elmo` is the pair of language models (the biLM) and, with `tasks`, heads on its layers. A head with `features = "mix"`
learns a weighted sum of them (section 3.2). Texts come as bytes; words are what spaces separate.
"""

from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan import config
from longspan.attention.state import State
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Ids, Mask, TextHeads
from longspan.models.word_base import BidirectionalModel, DirectionLosses, WordStates
from longspan.nn.characters import CharacterEncoder, Characters, WordsOfBytes, spell_bytes
from longspan.nn.dropout import Dropout
from longspan.nn.heads import TOKEN_TASKS, Head, build_head
from longspan.nn.layer_features import FeatureHead
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


class _OneWay(nn.Module):
    """The LSTM layers of one direction; every layer but the first is added to what it reads (section 3.4)."""

    def __init__(self, options: "Elmo.Options") -> None:
        super().__init__()
        width = options.projection
        layers = [ProjectedLstm(width, options.cells, width, clip=options.clip or None) for _ in range(options.layers)]
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


class Elmo(TextHeads, WordStates, BidirectionalModel):
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
        clip: float | None = option(3.0, "bound of cells and projections; 0 or none: no bound, and faster", low=0)
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
        tasks: tuple[Head, ...] | None = option(None, "the tasks that it has heads for")

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
        tasks = options.tasks or ()
        if any(head.task == "masked" for head in tasks):
            raise InvalidOption("elmo predicts words in both directions, not masked ones; leave out the head 'masked'")
        width, layers = 2 * options.projection, options.layers + 1
        self.heads = nn.ModuleDict(
            {
                head.task: build_head(
                    head, width, vocabulary=None, table_width=width, norm="layer", eps=1e-5, layers=layers
                )
                for head in tasks
            }
        )

    @property
    def token_rows(self) -> int:
        """It reads bytes."""
        return 256

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
    ) -> DirectionLosses:
        """Both directions' losses on the words `ids` that `characters` spell."""
        return self.score(self(characters, key_mask=key_mask), ids, key_mask=key_mask, generator=generator)

    def states(self, ids: Ids, key_mask: Mask | None = None) -> tuple[Layers, WordsOfBytes]:
        """All layers at the words of texts that are given as bytes, and where these words are.

        Texts are read between `<S>` and `</S>`, as in pre-training; the layers do not include these two.
        """
        words = spell_bytes(ids, key_mask, self.options.characters)
        layers = self(words.characters, key_mask=words.inside)
        index = (torch.arange(words.mask.shape[1], device=ids.device) + 1)[None, None, :, None]
        inner = layers.gather(2, index.expand(*layers.shape[:2], -1, layers.shape[3]))
        return inner.masked_fill(~words.mask[:, None, :, None], 0), words

    def word_states(self, ids: Ids, key_mask: Mask | None = None) -> tuple[Layers, Mask]:
        """All layers at the words of texts that are given as bytes, and which words are real."""
        layers, words = self.states(ids, key_mask)
        return layers, words.mask

    def outputs(
        self, ids: Ids, *, key_mask: Mask | None = None, segments: Ids | None = None, chosen: Mask | None = None
    ) -> dict[str, Tensor]:
        """The output of each head on texts that are given as bytes; a head for tokens gives each byte its word's."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            states, words = self.states(ids, key_mask)
        layers = states.unbind(1)
        outputs: dict[str, Tensor] = {}
        for task, head in self.heads.items():
            out: Tensor = head(layers if isinstance(head, FeatureHead) else layers[-1], words.mask)
            outputs[task] = words.to_bytes(out) if task in TOKEN_TASKS else out
        return outputs

    def score(
        self,
        layers: Layers,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        generator: torch.Generator | None = None,
    ) -> DirectionLosses:
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
        return DirectionLosses(
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


__all__ = ["Elmo", "ElmoState"]
