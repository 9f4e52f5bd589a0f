"""The Transformer (Vaswani et al. 2017) in its three forms, with any registered mechanism in each place.

`Encoder` reads both ways, `Decoder` is a language model, `Transformer` an encoder and a decoder that reads it. A family
that differs from these by its mechanism only is a row of `longspan.models.presets`, not a class.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attention.setting import Setting
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import Causal, Ids, Logits, Mask, Streams
from longspan.models.body import BodyOptions, build_stack, embedding, initialise, mechanisms, table_width
from longspan.models.headed import Headed, build_heads
from longspan.nn.feedforward import PLAIN
from longspan.nn.heads import Head, Masked
from longspan.nn.linear import Linear
from longspan.nn.loss import IGNORED
from longspan.nn.marks import mark, question
from longspan.shapes import Hidden

DENSE = (Setting("softmax"),)


@dataclass(frozen=True, kw_only=True)
class TextOptions(BodyOptions):
    """A body that reads tokens."""

    vocabulary: int = option(256, "number of token ids", low=1)
    padding: int | None = option(None, "the id of padding, whose embedding is zero", low=0)
    attention: tuple[Setting, ...] = option(DENSE, "mechanism of each layer, repeated from the bottom up")


class Encoder(Headed):
    """Hidden states of a text, each of which has read all of it; with heads, what tasks ask of them (BERT and kin)."""

    name = "encoder"
    paper = "Vaswani et al. 2017"
    _embed, _stack = staticmethod(embedding), staticmethod(build_stack)  # what a family may do in its own way

    @dataclass(frozen=True, kw_only=True)
    class Options(TextOptions):
        tasks: tuple[Head, ...] | None = option(None, "the tasks that it has heads for")
        count_real: bool = option(False, "whether positions count the tokens that are not padding (RoBERTa)")
        separator: int | None = option(None, "the id of the token between two texts", low=0)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.count_real and options.padding is None:
            raise InvalidOption("count_real counts what is not padding: give padding, its id")
        self.embedding = self._embed(options, options.vocabulary, options.padding)
        self.stack = self._stack(options, options.attention, place="encoder", causal=False)
        self.heads = build_heads(options, self.stack.out_width, options.vocabulary)
        reads = {stream.name for mechanism in mechanisms(self) for stream in mechanism.streams}
        if any(head.global_tokens for head in options.tasks or ()) and "global_mask" not in reads:
            raise InvalidOption("a head with global_tokens needs a mechanism that has them, such as longformer")
        initialise(self, options)

    @property
    def table(self) -> Tensor:
        return self.embedding.weight

    def forward(
        self,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        segments: Ids | None = None,
        streams: Streams | None = None,
    ) -> Hidden:
        if positions is None and self.options.count_real:
            real = ids != self.options.padding
            positions = real.cumsum(1) * real - 1  # padding is at -1, the row before the first
        x = self.embedding(ids, positions=positions, segments=segments)
        return self.stack(x, key_mask=key_mask, streams=streams, positions=positions)

    def outputs(
        self,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        segments: Ids | None = None,
        streams: Streams | None = None,
    ) -> dict[str, Tensor]:
        """What each head says, by the name of its task; what tasks know of a text is put in where it is not given:
        which tokens are global (`Head.global_tokens`), and which are a question (`Head.question`)."""
        tasks, separator = self.options.tasks or (), self.options.separator
        marks = sorted({head.global_tokens for head in tasks if head.global_tokens is not None})
        if marks and "global_mask" not in (streams or {}):
            found = [mark(how, ids, key_mask, separator) for how in marks]
            streams = {**(streams or {}), "global_mask": torch.stack(found).any(0)}
        asked = question(ids, separator) if any(head.question for head in tasks) else None
        if asked is not None and segments is None:
            segments = (~asked).long()
        x = self(ids, key_mask=key_mask, positions=positions, segments=segments, streams=streams)
        out = self.read(x, key_mask)
        if asked is not None:
            asked[:, 0] = False  # to point to the first token is to say that there is no answer
            out["span"] = out["span"] - 1e6 * asked[..., None]
        return out

    def choose(
        self,
        ids: Int[Tensor, "batch choices length"],
        *,
        key_mask: Bool[Tensor, "batch choices length"] | None = None,
        segments: Int[Tensor, "batch choices length"] | None = None,
    ) -> Float[Tensor, "batch choices"]:
        """The score of each of several texts, of which one is right; a softmax over them gives their probabilities.

        To `outputs` each choice is a row of its own, and so is its score.
        """
        if "choose" not in self.heads:
            raise Unsupported(f"this {self.name} has no head for 'choose'; it has {', '.join(self.heads) or 'none'}")
        if ids.ndim != 3:
            raise InvalidInput(f"expected token ids (batch, choices, length), got {tuple(ids.shape)}")
        mask, kinds = (None if given is None else given.flatten(0, 1) for given in (key_mask, segments))
        scores = self.outputs(ids.flatten(0, 1), key_mask=mask, segments=kinds)["choose"]
        return scores.unflatten(0, ids.shape[:2])


class Decoder(Headed, Causal):
    """A language model: the logits of the next token at every place (GPT and kin)."""

    name = "decoder"
    paper = "Radford et al. 2018"
    _embed, _stack = staticmethod(embedding), staticmethod(build_stack)

    @dataclass(frozen=True, kw_only=True)
    class Options(TextOptions):
        tasks: tuple[Head, ...] | None = option(None, "the tasks that it has heads for, beside the next token")
        tied: bool = option(True, "whether the output layer is the embedding")
        head_bias: bool = option(False, "whether the output layer has a bias (Reformer)")
        head_activation: str | None = option(
            None, "of a layer, with a norm, before the output layer; none: no such layer (BERT's)", choices=tuple(PLAIN)
        )
        zero_output: bool = option(False, "whether an output layer that is not tied starts at 0 (Child et al. 2019)")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.vocabulary, self.max_length = options.vocabulary, options.max_length
        self.embedding = self._embed(options, options.vocabulary, options.padding)
        self.stack = self._stack(options, options.attention, place="decoder", causal=True)
        plain = options.head_activation is None
        if options.tied and plain and self.stack.out_width != table_width(options):
            raise InvalidOption(
                f"the embedding is {table_width(options)} wide and the states {self.stack.out_width}, so that they "
                "cannot be tied: give tied=False, or merge='mean'"
            )
        if options.tied and plain and options.head_bias:
            raise InvalidOption("an output layer that is the embedding has no bias; give tied=False or no head_bias")
        self.head = self._build_head(options)
        self.heads = build_heads(options, self.stack.out_width, options.vocabulary)
        self.left_padding = all(mechanism.supports.left_padding for mechanism in mechanisms(self))
        initialise(self, options)
        if self.head is not None and self.head.weight is not None and options.zero_output:
            nn.init.zeros_(self.head.weight)

    def _build_head(self, options: Options) -> Linear | Masked | None:
        """None: the embedding alone."""
        width = self.stack.out_width
        if options.head_activation is None:
            return None if options.tied else Linear(width, options.vocabulary, bias=options.head_bias)
        head = Head(task="masked", activation=options.head_activation, tied=options.tied, bias=options.head_bias)
        inner, norm, eps = table_width(options), options.norm, options.eps
        return Masked(head, width, vocabulary=options.vocabulary, table_width=inner, norm=norm, eps=eps)

    def forward(
        self, ids: Ids, *, key_mask: Mask | None = None, positions: Ids | None = None, streams: Streams | None = None
    ) -> Logits:
        return self.logits(self.hidden(ids, key_mask=key_mask, positions=positions, streams=streams))

    def hidden(
        self, ids: Ids, *, key_mask: Mask | None = None, positions: Ids | None = None, streams: Streams | None = None
    ) -> Hidden:
        """The states that the output layer reads."""
        self._check_room(ids.shape[1])
        x = self.embedding(ids, positions=positions)
        return self.stack(x, key_mask=key_mask, streams=streams, positions=positions)

    @property
    def table(self) -> Tensor:
        return self.embedding.weight

    def outputs(
        self, ids: Ids, *, key_mask: Mask | None = None, positions: Ids | None = None, streams: Streams | None = None
    ) -> dict[str, Tensor]:
        """What each head says, by the name of its task."""
        return self.read(self.hidden(ids, key_mask=key_mask, positions=positions, streams=streams), key_mask)

    def logits(self, x: Hidden) -> Logits:
        """The output layer."""
        if isinstance(self.head, Masked):
            return self.head(x, self.table)
        return self.embedding.logits(x) if self.head is None else self.head(x)

    def start(
        self,
        batch: int,
        *,
        source: Ids | None = None,
        source_mask: Mask | None = None,
        source_streams: Streams | None = None,
        align: bool = False,
    ) -> Any:
        self._refuse_source(source, align)
        return self.stack.start(batch, dtype=self.dtype, device=self.device)

    def extend(
        self,
        ids: Ids,
        state: Any,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        last: bool = False,
    ) -> tuple[Logits, Any]:
        self._check_room(state.length + ids.shape[1])
        start = state.length if positions is None else 0
        x = self.embedding(ids, start=start, positions=positions)
        x, state = self.stack.extend(x, state, key_mask=key_mask, positions=positions)
        return self.logits(x[:, -1:] if last else x), state


class Transformer(Headed, Causal):
    """An encoder, and a decoder that reads it: the model of the paper, for translation and the like."""

    name = "transformer"
    paper = "Vaswani et al. 2017"
    _embed, _stack = staticmethod(embedding), staticmethod(build_stack)
    reads_source = True

    @dataclass(frozen=True, kw_only=True)
    class Options(BodyOptions):
        vocabulary: int = option(256, "number of token ids, of the source too unless said", low=1)
        source_vocabulary: int | None = option(None, "number of source ids, where the two differ", low=1)
        padding: int | None = option(None, "the id of padding, whose embedding is zero", low=0)
        tied: bool = option(True, "whether both embeddings and the output layer are one matrix")
        source_length: int | None = option(
            None, "the longest source, where it has positions, a norm and a limit of its own (BART, LED)", low=1
        )
        decoder_layers: int | None = option(None, "blocks of the decoder; as many as `layers` unless given", low=1)
        encoder_attention: tuple[Setting, ...] = option(DENSE, "mechanism of each encoder layer")
        decoder_attention: tuple[Setting, ...] = option(DENSE, "mechanism of each decoder layer, causal")
        cross_attention: tuple[Setting, ...] = option(DENSE, "mechanism by which each decoder layer reads the encoder")
        tasks: tuple[Head, ...] | None = option(None, "the tasks that its decoder has heads for (BART)")
        decoder_heads: int | None = option(None, "attention heads of the decoder; as `heads` unless given", low=1)
        decoder_hidden: int | None = option(
            None, "inner width of the decoder's feed-forward layer; as `hidden` unless given", low=1
        )
        logit_bias: bool = option(False, "whether constants, which are not trained, are added to the logits (BART)")

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.vocabulary, self.max_length = options.vocabulary, options.max_length
        own = options.source_vocabulary or options.vocabulary
        shared = options.tied and own == options.vocabulary
        reading = replace(options, max_length=options.source_length or options.max_length)
        self.target = self._embed(options, options.vocabulary, options.padding)
        # One matrix needs no second embedding where the two have the same positions and dropout as well.
        alike = shared and options.source_length is None
        self.source = None if alike else self._embed(reading, own, options.padding)
        if self.source is not None and shared:
            self.source.weight = self.target.weight
        self.encoder = self._stack(reading, options.encoder_attention, place="encoder", causal=False)
        writing = replace(
            options,
            heads=options.decoder_heads or options.heads,
            hidden=options.decoder_hidden or options.hidden,
        )
        self.decoder = self._stack(
            writing,
            options.decoder_attention,
            place="decoder",
            causal=True,
            layers=options.decoder_layers,
            cross=options.cross_attention,
            cross_length=options.source_length,
        )
        self.head = None if options.tied else Linear(options.width, options.vocabulary, bias=False)
        self.logit_bias: Tensor | None
        self.register_buffer("logit_bias", torch.zeros(options.vocabulary) if options.logit_bias else None)
        self.heads = build_heads(options, options.width, options.vocabulary)
        self.left_padding = all(mechanism.supports.left_padding for mechanism in mechanisms(self.decoder))
        initialise(self, options)

    def encode(self, source: Ids, *, source_mask: Mask | None = None, streams: Streams | None = None) -> Hidden:
        """The encoder's states."""
        most = self.options.source_length or self.max_length
        if most is not None and source.shape[1] > most:
            raise InvalidInput(f"this {self.name} reads at most {most} source tokens, and {source.shape[1]} were given")
        x = (self.target if self.source is None else self.source)(source)
        return self.encoder(x, key_mask=source_mask, streams=streams)

    def forward(
        self,
        source: Ids,
        ids: Ids,
        *,
        source_mask: Mask | None = None,
        key_mask: Mask | None = None,
        streams: Streams | None = None,
    ) -> Logits:
        """The logits of the target's next token at each of its places; `streams` are for the encoder."""
        return self.logits(self.hidden(source, ids, source_mask=source_mask, key_mask=key_mask, streams=streams))

    def hidden(
        self,
        source: Ids,
        ids: Ids,
        *,
        source_mask: Mask | None = None,
        key_mask: Mask | None = None,
        streams: Streams | None = None,
    ) -> Hidden:
        """The decoder's states, which the output layer reads."""
        self._check_room(ids.shape[1])
        context = self.encode(source, source_mask=source_mask, streams=streams)
        return self.decoder(self.target(ids), context, key_mask=key_mask, context_mask=source_mask)

    @property
    def table(self) -> Tensor:
        return self.target.weight

    def outputs(
        self,
        source: Ids,
        ids: Ids,
        *,
        source_mask: Mask | None = None,
        key_mask: Mask | None = None,
        streams: Streams | None = None,
    ) -> dict[str, Tensor]:
        """What each head says of the decoder's states, by the name of its task."""
        x = self.hidden(source, ids, source_mask=source_mask, key_mask=key_mask, streams=streams)
        return self.read(x, key_mask)

    def logits(self, x: Hidden) -> Logits:
        """The output layer."""
        found = self.target.logits(x) if self.head is None else self.head(x)
        return found if self.logit_bias is None else found + self.logit_bias

    def start(
        self,
        batch: int,
        *,
        source: Ids | None = None,
        source_mask: Mask | None = None,
        source_streams: Streams | None = None,
        align: bool = False,
    ) -> Any:
        if source is None:
            raise InvalidInput(f"{self.name} reads a source: start(batch, source=ids, source_mask=mask)")
        if len(source) != batch:
            raise InvalidInput(f"the source has {len(source)} rows for a batch of {batch}")
        context = self.encode(source, source_mask=source_mask, streams=source_streams)
        return self.decoder.start(
            batch, context, context_mask=source_mask, align=align, dtype=self.dtype, device=self.device
        )

    def extend(
        self,
        ids: Ids,
        state: Any,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        last: bool = False,
    ) -> tuple[Logits, Any]:
        self._check_room(state.length + ids.shape[1])
        start = state.length if positions is None else 0
        x = self.target(ids, start=start, positions=positions)
        x, state = self.decoder.extend(x, state, key_mask=key_mask, positions=positions)
        return self.logits(x[:, -1:] if last else x), state


def shift_right(ids: Ids, start: int, *, padding: int | None = None) -> Ids:
    """What a decoder reads to predict `ids`: the token that texts start with, then all of `ids` but the last.

    BART's starts with the end of a text, 2. Targets that do not count (-100) are read as `padding`.
    """
    shifted = torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)
    if bool((shifted == IGNORED).any()):
        if padding is None:
            raise InvalidInput(f"some targets are {IGNORED}, which no token is: say by `padding` as what they are read")
        shifted = shifted.masked_fill(shifted == IGNORED, padding)
    return shifted


__all__ = ["DENSE", "Decoder", "Encoder", "TextOptions", "Transformer", "shift_right"]
