"""The base classes of models: `Model`, and a class for each ability that tasks and decoding ask for.

    Model              options, named parts, a folder on disk
    CausalModel        reads left to right and predicts the next token: language modelling, generation
    EncoderDecoder     predicts the next token of a target given a source: translation, denoising
    TextHeads          reads a text and has task heads: classification, tagging, answers, masked tokens
    TextStates         reads a text and gives its hidden states: embeddings of texts
    CausalTextHeads    both of these: GPT's fine-tuning, with its auxiliary loss
    SentenceHeads      reads a text with global tokens for its sentences, and has task heads (ETC)
    ReplacedTokenPair  a generator and a discriminator (ELECTRA): replaced-token detection

`image_base.py` has those of images and sets, `pixel_base.py` that of generated images, `word_base.py` those of words,
`series_base.py` that of series.

A task never names a model class. It asks for an ability, `TextHeads.require(model, "classify")`, so a model from
outside the package joins a task by subclassing the ability.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan import config
from longspan.errors import InvalidInput, Unsupported
from longspan.nn.loss import IGNORED
from longspan.shapes import Hidden

if TYPE_CHECKING:
    from longspan.models.adapters import Adapter

Ids = Int[Tensor, "batch length"]
Logits = Float[Tensor, "batch positions vocabulary"]  # one position per token or, with `last`, one in all
Mask = Bool[Tensor, "batch length"]
Streams = Mapping[str, Tensor]  # inputs of a mechanism besides the tokens, such as which tokens are global


class Model(nn.Module, ABC):
    """The base of every model; `Model.build(width=512, …)` makes one from its options.

    A subclass declares its `Options`, and `options: Options` below them, so that type checkers know their fields.
    """

    name: ClassVar[str]  # as in the registry and in config.json
    paper: ClassVar[str]  # "Vaswani et al. 2017"
    files: ClassVar[tuple[str, ...]] = ()  # names of the files that `write_files` writes
    ability: ClassVar[str] = "a model"  # what a task asks for, in the words of an error message

    sparse_gradients: ClassVar[bool] = False  # whether its gradients are sparse tensors

    options: Any
    adapter: "Adapter | None" = None  # small trained weights on top of frozen ones

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pass

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.options = options

    @classmethod
    def build(cls, **options: Any) -> Self:
        """A model from its options, as Python values or as a configuration file spells them."""
        return cls(config.make(cls.Options, options, cls.name))

    @classmethod
    def require(cls, model: "Model", task: str) -> Self:
        """`model`, if it has the ability that `task` needs; otherwise an error that names the models that do."""
        if isinstance(model, cls):
            return model
        from longspan.models.registry import MODELS  # imports this file

        able = [name for name in [*MODELS.entries, *MODELS.registered] if issubclass(MODELS.find(name), cls)]
        raise Unsupported(
            f"the task {task!r} needs {cls.ability}, and {model.name!r} is not one; choose from: {', '.join(able)}"
        )

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of its parameters."""
        return next(self.parameters()).dtype

    def parts(self) -> Mapping[str, nn.Module | nn.Parameter]:
        """The parts as the paper names them, for parameter counts. Tied weights count once."""
        return dict(self.named_children())

    def auxiliary_loss(self) -> Tensor | None:
        """What the last training pass adds to the task's loss (commitment, reconstruction, ponder time), or None."""
        candidates = [getattr(module, "auxiliary_loss", None) for module in self.modules() if module is not self]
        losses = [loss for loss in candidates if isinstance(loss, Tensor)]
        return torch.stack(losses).sum() if losses else None

    def halting_steps(self) -> dict[str, Tensor]:
        """How many steps each position of the last pass took, (batch, length), by stack; {}: none of them halts."""
        steps = {name: getattr(module, "halting_steps", None) for name, module in self.named_modules() if name}
        return {name: count for name, count in steps.items() if isinstance(count, Tensor)}

    def save(self, folder: Path | str, *, tokenizer: str | None = None) -> None:
        """Writes `config.json`, `model.safetensors` and, if its text is given, `tokenizer.json`."""
        from longspan.models.folder import save  # imports this file

        save(self, Path(folder), tokenizer=tokenizer)

    def write_files(self, folder: Path) -> None:
        """Writes what the model keeps in its folder besides options and weights, such as its words."""

    def read_files(self, folder: Path) -> None:
        """Reads what `write_files` wrote."""

    @property
    def token_rows(self) -> int | None:
        """The number of token ids that it reads; None: it does not say."""
        rows: int | None = getattr(self.options, "vocabulary", None)
        return rows


@dataclass(frozen=True)
class Source:
    """What an encoder–decoder reads before its first token."""

    ids: Ids
    mask: Mask | None = None  # True for real tokens
    streams: Streams | None = None
    align: bool = False  # whether states keep `alignment`


class CausalModel(Model):
    """A model that reads left to right and gives the logits of the next token.

    `start` gives the state before the first token, and `extend` reads the next tokens, any number of them: that is all
    that `longspan.decode` needs. `forward(ids)` gives the logits of a whole text, for training. A subclass writes
    `initial_state`, `extend_hidden` and `logits`, which these two call.

    `key_mask` (True: real) and `positions` are those of the given tokens. If `left_padding` is True, a row padded on
    its left gives the same logits as the row alone, provided that `positions` count its real tokens from 0.
    """

    ability = "a model that predicts the next token"
    vocabulary: int
    max_length: int | None = None  # the longest text it can hold; None: any
    # Whether tables end at max_length. If not, max_length is only what the model was trained for, and
    # `extend(…, beyond=True)` reads past it.
    fixed_length: bool = True
    left_padding: bool = False
    # Texts above this length are read otherwise from their first token on (longrope), so a state cannot cross it.
    switch_length: int | None = None
    reads_source: bool = False  # an encoder–decoder: start() needs a source

    def start(
        self,
        batch: int,
        *,
        source: Ids | None = None,
        source_mask: Mask | None = None,
        source_streams: Streams | None = None,
        align: bool = False,
    ) -> Any:
        """The state before the first token, after reading the source (and its streams) if the model reads one.

        With `align`, the state after each `extend` has `alignment` (batch, new tokens, source tokens).
        """
        if not self.reads_source:
            if source is not None or align:
                raise InvalidInput(f"{self.name} reads no source; leave out source and align")
            return self.initial_state(batch)
        if source is None:
            raise InvalidInput(f"{self.name} reads a source: start(batch, source=ids, source_mask=mask)")
        if source.shape[0] != batch:
            raise InvalidInput(f"the source has {len(source)} rows for a batch of {batch}")
        return self.initial_state(batch, Source(source, source_mask, source_streams, align))

    def extend(
        self,
        ids: Ids,
        state: Any,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        last: bool = False,
        beyond: bool = False,
    ) -> tuple[Logits, Any]:
        """The logits after each of the next tokens (with `last`, after the last one only), and the state after them.

        With `beyond`, a model whose tables do not end at `max_length` reads past it.
        """
        if self.max_length is not None and (self.fixed_length or not beyond):
            self._check_room(state.length + ids.shape[1])
        x, state = self.extend_hidden(ids, state, key_mask, positions)
        return self.logits(x[:, -1:] if last else x), state

    # Methods that a model writes, unless it overrides `start` and `extend`

    def initial_state(self, batch: int, source: Source | None = None) -> Any:
        """The state before the first token; `source` is given if the model reads one."""
        raise NotImplementedError(f"{type(self).__name__} has neither initial_state nor start")

    def extend_hidden(
        self, ids: Ids, state: Any, key_mask: Mask | None = None, positions: Ids | None = None
    ) -> tuple[Hidden, Any]:
        """The hidden states of the next tokens, which the output layer reads, and the state after them."""
        raise NotImplementedError(f"{type(self).__name__} has neither extend_hidden nor extend")

    def logits(self, x: Hidden) -> Logits:
        """The output layer."""
        raise NotImplementedError(f"{type(self).__name__} has no logits")

    def text_logits(self, ids: Ids, *, key_mask: Mask | None = None) -> Logits:
        """The logits after each token of a whole text."""
        if key_mask is not None and "key_mask" not in signature(self.forward).parameters:
            raise Unsupported(f"{self.name} takes no key_mask, so it cannot read padded texts")
        logits: Tensor = self(ids) if key_mask is None else self(ids, key_mask=key_mask)
        return logits

    def segment_logits(self, ids: Ids, memory: Any = None) -> tuple[Logits, Any]:
        """The logits after each token of a segment, and the memory for the next segment, without gradients.

        `memory` is what the previous segment left; None before the first one.
        """
        state = self.start(len(ids)) if memory is None else memory
        logits, state = self.extend(ids, state)
        return logits, state.detach()

    def _check_room(self, length: int) -> None:
        if self.max_length is not None and length > self.max_length:
            raise InvalidInput(f"this {self.name} holds at most {self.max_length} tokens, and {length} were given")


class EncoderDecoder(CausalModel):
    """A model that reads a source, and predicts each next token of a target."""

    ability = "an encoder–decoder, which reads a source and writes a target"
    reads_source = True

    @abstractmethod
    def forward(self, source: Ids, ids: Ids, *, source_mask: Mask | None = None) -> Logits:
        """The logits after each token of the target `ids`."""


class TextHeads(Model):
    """A model that reads a text and has `heads`, one for each task of its option `tasks`."""

    ability = "a model of text with task heads"
    heads: nn.ModuleDict
    frozen: bool = False  # only the heads are trained: the rest stays in evaluation mode, without dropout

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            for name, child in self.named_children():
                if name != "heads":
                    child.eval()
        return self

    @property
    def segment_kinds(self) -> int:
        """How many kinds of segments it tells apart, such as first and second sentence; 0: none."""
        return int(getattr(self.options, "segments", 0))

    @abstractmethod
    def outputs(
        self, ids: Ids, *, key_mask: Mask | None = None, segments: Ids | None = None, chosen: Mask | None = None
    ) -> dict[str, Tensor]:
        """The output of each head, by task. The head for masked tokens reads the `chosen` tokens only, if given."""


class TextStates(Model):
    """A model that reads a text and gives the hidden states of each token; an encoder–decoder gives its encoder's."""

    ability = "a model that gives the hidden states of a text"

    @abstractmethod
    def text_states(self, ids: Ids, *, key_mask: Mask | None = None) -> Hidden:
        """The states after the last layer, as heads and output layers read them."""

    @abstractmethod
    def layer_states(self, ids: Ids, *, key_mask: Mask | None = None) -> list[Hidden]:
        """The embeddings, and the states after each layer; the last ones are `text_states`."""


class CausalTextHeads(CausalModel, TextHeads):
    """A causal model with task heads, which gives the outputs of its heads and the next token's logits at once."""

    ability = "a causal model with task heads"

    @abstractmethod
    def outputs_and_logits(
        self, ids: Ids, *, key_mask: Mask | None = None, segments: Ids | None = None
    ) -> tuple[dict[str, Tensor], Logits]:
        """The output of each head, by task, and the logits after each token, from one pass."""


@dataclass(frozen=True)
class SentenceStates:
    """What a `SentenceHeads` model makes of a batch of texts."""

    tokens: Float[Tensor, "batch length width"]
    whole: Float[Tensor, "batch width"]  # of the global token that stands for the whole text
    sentences: Float[Tensor, "batch sentences width"]  # of the global token of each sentence
    key_mask: Mask | None  # the tokens that are not padding
    sentence_mask: Bool[Tensor, "batch sentences"]  # the sentences that each text has


class SentenceHeads(TextHeads):
    """A model of text with a global token for each sentence and one for the whole text, and with task heads (ETC).

    `sentences` (batch, length) numbers the sentence of each token from 0; without it, the model finds sentences by its
    options. Heads for whole texts read the global tokens, heads for tokens the tokens.
    """

    ability = "a model with a global token for each sentence"

    @abstractmethod
    def read_sentences(
        self, ids: Ids, *, key_mask: Mask | None = None, segments: Ids | None = None, sentences: Ids | None = None
    ) -> SentenceStates:
        """The states of tokens, sentences and whole texts."""

    @abstractmethod
    def read_heads(self, states: SentenceStates, chosen: Mask | None = None) -> dict[str, Tensor]:
        """The output of each head on these states, by task."""

    def outputs(
        self, ids: Ids, *, key_mask: Mask | None = None, segments: Ids | None = None, chosen: Mask | None = None
    ) -> dict[str, Tensor]:
        return self.read_heads(self.read_sentences(ids, key_mask=key_mask, segments=segments), chosen)


@dataclass(frozen=True)
class Detection:
    """A pass of a `ReplacedTokenPair`: what the generator proposed, and what the discriminator says of its draws."""

    proposals: Float[Tensor, "places vocabulary"]  # the generator's logits at the chosen tokens, in order
    targets: Int[Tensor, " places"]  # the original ids of the chosen tokens
    ids: Ids  # the text with the drawn tokens: what the discriminator read
    labels: Bool[Tensor, "batch length"]  # True: replaced; False where the original token was drawn again
    detections: Float[Tensor, "batch length"]  # the discriminator's logits that a token was replaced
    real: Mask  # the tokens that are not padding


class ReplacedTokenPair(Model):
    """A generator that fills in masked tokens, and a discriminator that detects which tokens it replaced."""

    ability = "a generator and a discriminator that are trained together"
    discriminator: Model  # what is kept after pre-training

    @property
    @abstractmethod
    def detection_weight(self) -> float:
        """The weight of the discriminator's loss relative to the generator's."""

    @property
    def segment_kinds(self) -> int:
        """How many kinds of segments it tells apart, such as first and second sentence; 0: none."""
        return int(getattr(self.options, "segments", 0))

    @abstractmethod
    def propose(
        self, masked: Ids, chosen: Mask, *, key_mask: Mask | None = None, segments: Ids | None = None
    ) -> Float[Tensor, "places vocabulary"]:
        """The generator's logits at the chosen tokens only."""

    @abstractmethod
    def draw(
        self, proposals: Float[Tensor, "places vocabulary"], generator: torch.Generator | None = None
    ) -> Int[Tensor, " places"]:
        """A token for each row of logits, drawn from their softmax."""

    @abstractmethod
    def detect(
        self, ids: Ids, *, key_mask: Mask | None = None, segments: Ids | None = None
    ) -> Float[Tensor, "batch length"]:
        """The discriminator's logits that each token was replaced."""

    @abstractmethod
    def forward(
        self,
        ids: Ids,
        masked: Ids,
        chosen: Mask,
        *,
        key_mask: Mask | None = None,
        segments: Ids | None = None,
        generator: torch.Generator | None = None,
    ) -> Detection:
        """Draws tokens for the `chosen` ones, which `masked` hides, and says of every token whether it was replaced."""


def shift_right(ids: Ids, start: int, *, padding: int | None = None) -> Ids:
    """What a decoder reads to predict `ids`: the start token, then `ids` without its last token.

    BART's start token is the one that ends a text, 2. Ignored targets (-100) become `padding`.
    """
    shifted = torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)
    if bool((shifted == IGNORED).any()):
        if padding is None:
            raise InvalidInput(
                f"some targets are {IGNORED}, which is not a token: give `padding`, the id to read there"
            )
        shifted = shifted.masked_fill(shifted == IGNORED, padding)
    return shifted


__all__ = [
    "CausalModel",
    "CausalTextHeads",
    "Detection",
    "EncoderDecoder",
    "Ids",
    "Logits",
    "Mask",
    "Model",
    "ReplacedTokenPair",
    "SentenceHeads",
    "SentenceStates",
    "Source",
    "Streams",
    "TextHeads",
    "TextStates",
    "shift_right",
]
