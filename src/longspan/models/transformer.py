"""The Transformer (Vaswani et al. 2017), an encoder–decoder with any attention in each layer.

`encoder.Encoder` and `decoder.Decoder` are its halves by themselves. A model that differs from these three only by its
attention or its sizes is a preset of `models.presets`, not a class.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longspan.attention.config import AttentionConfig
from longspan.attention.devices import host_may_read
from longspan.config import option
from longspan.errors import InvalidInput
from longspan.models.base import EncoderDecoder, Ids, Logits, Mask, Source, Streams, TextHeads, TextStates, shift_right
from longspan.models.body import BodyOptions, build_stack, embedding, initialise, mechanisms
from longspan.models.headed import Headed, build_heads
from longspan.models.text import DENSE
from longspan.nn.global_tokens import global_mask
from longspan.nn.heads import Head
from longspan.nn.inputs import BlockInputs
from longspan.nn.linear import Linear
from longspan.nn.recorder import recorded_states
from longspan.shapes import Hidden


class Transformer(Headed, EncoderDecoder, TextHeads, TextStates):
    """An encoder, and a decoder that reads its states: for translation, summaries and denoising (BART, LED)."""

    name = "transformer"
    paper = "Vaswani et al. 2017"
    _embed, _stack = staticmethod(embedding), staticmethod(build_stack)

    @dataclass(frozen=True, kw_only=True)
    class Options(BodyOptions):
        vocabulary: int = option(256, "number of token ids, of the source too unless source_vocabulary is given", low=1)
        source_vocabulary: int | None = option(None, "number of source ids, if it differs", low=1)
        padding: int | None = option(None, "the id of padding, whose embedding is zero", low=0)
        tied: bool = option(True, "whether both embeddings and the output layer are one matrix")
        shared_embedding: bool | None = option(
            None, "whether both embeddings are one matrix; as `tied` unless given (T5 v1.1: true, and not tied)"
        )
        scale_output: bool = option(False, "whether states are divided by √width before the output layer (T5)")
        start: int | None = option(
            None, "the decoder's first token where it reads the source itself, for heads (BART: 2, T5: 0)", low=0
        )
        source_length: int | None = option(
            None, "the longest source, if it has an embedding of its own: positions, norm and limit (BART, LED)", low=1
        )
        decoder_layers: int | None = option(None, "blocks of the decoder; as many as `layers` unless given", low=1)
        encoder_attention: tuple[AttentionConfig, ...] = option(DENSE, "attention of each encoder layer")
        decoder_attention: tuple[AttentionConfig, ...] = option(DENSE, "causal attention of each decoder layer")
        cross_attention: tuple[AttentionConfig, ...] = option(
            DENSE, "attention by which each decoder layer reads the encoder"
        )
        tasks: tuple[Head, ...] | None = option(None, "tasks that its decoder has heads for (BART)")
        decoder_heads: int | None = option(None, "attention heads of the decoder; as `heads` unless given", low=1)
        decoder_hidden: int | None = option(
            None, "inner width of the decoder's feed-forward layer; as `hidden` unless given", low=1
        )
        source_global: str | None = option(
            None, "source tokens that are global where none are given: the first (LED)", choices=("first",)
        )
        logit_bias: bool = option(False, "whether untrained constants are added to the logits (BART)")

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.vocabulary, self.max_length = options.vocabulary, options.max_length
        source_vocabulary = options.source_vocabulary or options.vocabulary
        shared = options.tied if options.shared_embedding is None else options.shared_embedding
        shared = shared and source_vocabulary == options.vocabulary
        reading = replace(options, max_length=options.source_length or options.max_length)
        self.target = self._embed(options, options.vocabulary, options.padding)
        # One embedding serves both sides if they share the matrix, positions and dropout.
        same = shared and options.source_length is None
        self.source = None if same else self._embed(reading, source_vocabulary, options.padding)
        if self.source is not None and shared:
            self.source.weight = self.target.weight
        self.encoder = self._stack(reading, options.encoder_attention, stack_name="encoder", causal=False)
        writing = replace(
            options,
            heads=options.decoder_heads or options.heads,
            hidden=options.decoder_hidden or options.hidden,
        )
        self.decoder = self._stack(
            writing,
            options.decoder_attention,
            stack_name="decoder",
            causal=True,
            layers=options.decoder_layers,
            cross=options.cross_attention,
            cross_length=options.source_length,
        )
        self.head = None if options.tied else Linear(options.width, options.vocabulary, bias=False)
        self.logit_bias: Tensor | None
        self.register_buffer("logit_bias", torch.zeros(options.vocabulary) if options.logit_bias else None)
        self.heads = build_heads(options, options.width, options.vocabulary)
        reads = {stream.name for mechanism in mechanisms(self.encoder) for stream in mechanism.streams}
        # An LED whose attention was replaced may have no global tokens any more.
        self.source_global = options.source_global if "global_mask" in reads else None
        self.left_padding = all(mechanism.supports.left_padding for mechanism in mechanisms(self.decoder))
        initialise(self, options)

    def encode(self, source: Ids, *, source_mask: Mask | None = None, streams: Streams | None = None) -> Hidden:
        """The encoder's states."""
        most = self.options.source_length or self.max_length
        if most is not None and source.shape[1] > most:
            raise InvalidInput(f"this {self.name} reads at most {most} source tokens, and {source.shape[1]} were given")
        if self.source_global is not None and "global_mask" not in (streams or {}):
            marked = global_mask(self.source_global, source, source_mask, None)
            streams = {**(streams or {}), "global_mask": marked}
        x = (self.target if self.source is None else self.source)(source)
        states: Tensor = self.encoder(x, BlockInputs(key_mask=source_mask, streams=streams))
        return states

    def text_states(self, ids: Ids, *, key_mask: Mask | None = None) -> Hidden:
        return self.encode(ids, source_mask=key_mask)

    def layer_states(self, ids: Ids, *, key_mask: Mask | None = None) -> list[Hidden]:
        return recorded_states(self.encoder, lambda: self.encode(ids, source_mask=key_mask))

    def forward(
        self,
        source: Ids,
        ids: Ids,
        *,
        source_mask: Mask | None = None,
        key_mask: Mask | None = None,
        streams: Streams | None = None,
    ) -> Logits:
        """The logits after each token of the target; `streams` are for the encoder."""
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
        inputs = BlockInputs(context=context, context_mask=source_mask, key_mask=key_mask)
        states: Tensor = self.decoder(self.target(ids), inputs)
        return states

    @property
    def table(self) -> Tensor:
        return self.target.weight

    def outputs(
        self,
        ids: Ids,
        target: Ids | None = None,
        *,
        source_mask: Mask | None = None,
        key_mask: Mask | None = None,
        segments: Ids | None = None,
        streams: Streams | None = None,
        chosen: Mask | None = None,
    ) -> dict[str, Tensor]:
        """The output of each head on the decoder's states, by task.

        Without a `target` the decoder reads the text too, after its `start` token, so that its states have read all of
        it: `key_mask` is then that of the text, which is padded on the right (Lewis et al. 2020, section 3).
        """
        if segments is not None:
            raise InvalidInput("this model has no segment embeddings; leave out segments")
        decoder_mask = key_mask
        if target is None:
            if source_mask is not None:
                raise InvalidInput("without a target, key_mask is the mask of the text; leave out source_mask")
            target, source_mask, decoder_mask = self._itself(ids, key_mask), key_mask, None
        return self.read_from(
            self.decoder,
            lambda: self.hidden(ids, target, source_mask=source_mask, key_mask=decoder_mask, streams=streams),
            key_mask,
            chosen,
        )

    def _itself(self, ids: Ids, key_mask: Mask | None) -> Ids:
        """What the decoder reads if it reads the text: its start token and the text without the last token."""
        if self.options.start is None:
            raise InvalidInput("the decoder reads the text after a first token: give its id as the option start")
        if key_mask is not None and host_may_read(key_mask) and not bool(key_mask[:, 0].all()):
            raise InvalidInput("heads of an encoder–decoder read texts that are padded on the right")
        return shift_right(ids, self.options.start)

    def logits(self, x: Hidden) -> Logits:
        """The output layer."""
        if self.options.scale_output:
            x = x * self.options.width**-0.5
        logits: Tensor = self.target.logits(x) if self.head is None else self.head(x)
        return logits if self.logit_bias is None else logits + self.logit_bias

    def initial_state(self, batch: int, source: Source | None = None) -> Any:
        assert source is not None  # `start` checks it
        context = self.encode(source.ids, source_mask=source.mask, streams=source.streams)
        inputs = BlockInputs(context=context, context_mask=source.mask, align=source.align)
        return self.decoder.start(batch, inputs, dtype=self.dtype, device=self.device)

    def extend_hidden(
        self, ids: Ids, state: Any, key_mask: Mask | None = None, positions: Ids | None = None
    ) -> tuple[Hidden, Any]:
        start = state.length if positions is None else 0
        x = self.target(ids, start=start, positions=positions)
        return self.decoder.extend(x, state, BlockInputs(key_mask=key_mask, positions=positions))


__all__ = ["Transformer"]
