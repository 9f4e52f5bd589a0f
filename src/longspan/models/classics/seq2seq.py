"""Recurrent encoder–decoders: Sutskever et al. 2014, Bahdanau et al. 2015, Luong et al. 2015, and combinations.

The defaults are Sutskever's. Each paper's model is a preset, whose options can be changed:

>>> model = build("seq2seq-luong", vocabulary=8000, reach="local_p")
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from longspan import config
from longspan.attention.mechanisms.softmax import SCORES
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import EncoderDecoder, Ids, Logits, Mask, Source
from longspan.nn.alignment import CENTRES, REACHES, Alignment
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.recurrent import (
    CELLS,
    Recurrent,
    RecurrentState,
    check_mask,
    initialise_uniform,
    keep_starts,
    reversal,
)
from longspan.nn.recurrent_decoder import BahdanauDecoder, DecoderState, LuongDecoder, PlainDecoder, RecurrentDecoder
from longspan.shapes import Hidden

SourceIds = Int[Tensor, "batch source"]
SourceMask = Bool[Tensor, "batch source"]
DECODERS = ("plain", "bahdanau", "luong")


class Seq2Seq(EncoderDecoder):
    """An encoder that reads the source, and a recurrent decoder that starts from the encoder's final state.

    Padding anywhere in source and target is skipped. The model ignores `positions`: recurrent layers know only the
    order.
    """

    name = "seq2seq"
    paper = "Sutskever et al. 2014"
    left_padding = True

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        vocabulary: int = option(256, "number of token ids, of the source too unless source_vocabulary is given", low=1)
        source_vocabulary: int | None = option(None, "number of source ids, if it differs", low=1)
        padding: int | None = option(None, "the id of padding, whose embedding is zero", low=0)
        embedding: int = option(1000, "width of the embeddings", low=1)
        width: int = option(1000, "width of a layer, in each direction", low=1)
        layers: int = option(4, "layers of the encoder, and of the decoder", low=1)
        cell: str = option("lstm", "kind of recurrent cell", choices=CELLS)
        forget_bias: float | None = option(None, "initial bias of an LSTM's forget gates; random unless given")
        bidirectional: bool = option(False, "whether the encoder reads in both directions")
        reverse_source: bool = option(True, "whether the encoder reads the source from its end")
        decoder: str = option("plain", "plain: no attention; bahdanau, luong: the paper's attention", choices=DECODERS)
        score: str = option("additive", "how a decoder state is compared with an encoder state", choices=SCORES)
        alignment_width: int | None = option(None, "width of the additive score; `width` unless given", low=1)
        max_source: int | None = option(None, "the longest source; needed by the location score", low=1)
        reach: str = option("global", "how much of the source a step reads (Luong)", choices=REACHES)
        radius: int = option(10, "local: positions on each side of the centre", low=1)
        renormalise: bool = option(False, "local_p: whether the Gaussian comes before the softmax")
        centre: str = option("paper", "local_p: S·sigmoid, or as released 1 + (S-1)·sigmoid", choices=CENTRES)
        input_feeding: bool = option(False, "luong: whether a step reads the attentional state of the previous step")
        maxout: int = option(500, "bahdanau: width of the deep output", low=1)
        dropout: float = option(0.0, "on every connection that is not recurrent", low=0, high=0.999)
        teacher_forcing: float = option(1.0, "training: the share of input tokens from the target", low=0, high=1)
        init: str = option("uniform", "uniform: all in ±init_bound", choices=("uniform", "bahdanau"))
        init_bound: float = option(0.08, "bound of uniform initial weights", low=0)

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.input_feeding and options.decoder != "luong":
            raise InvalidOption(f"input_feeding goes with decoder luong, not {options.decoder}")
        if options.reach != "global" and options.decoder == "plain":
            raise InvalidOption(f"reach {options.reach} needs attention, which decoder plain does not have")
        self.vocabulary = options.vocabulary
        self.teacher_forcing = options.teacher_forcing  # a schedule may change it
        self.source = TokenEmbedding(
            options.source_vocabulary or options.vocabulary, options.embedding, scale=False, padding=options.padding
        )
        self.target = TokenEmbedding(options.vocabulary, options.embedding, scale=False, padding=options.padding)
        self.encoder = _layers(options, options.embedding, bidirectional=options.bidirectional)
        self.bridge = _Bridge(options) if options.bidirectional else None
        self.decoder = _decoder(options, self.encoder.out_width)
        self.head = nn.Linear(self.decoder.out_width, options.vocabulary, bias=options.decoder != "luong")
        if options.init == "bahdanau":
            _initialise_bahdanau(self)
        else:
            initialise_uniform(self, options.init_bound)

    def encode(self, source: Ids, *, source_mask: Mask | None = None) -> tuple[Hidden, RecurrentState]:
        """The encoder's states in the order of the source, and the decoder's initial state."""
        self._check_source(source, source_mask)
        index = None
        if self.options.reverse_source:
            real = torch.ones_like(source, dtype=torch.bool) if source_mask is None else source_mask
            index = reversal(real)
            source = source.gather(1, index)
        states, last = self.encoder(self.source(source), key_mask=source_mask)
        if index is not None:
            states = states.gather(1, index[..., None].expand_as(states))
        return states, replace(last if self.bridge is None else self.bridge(last), length=0)

    def forward(
        self,
        source: SourceIds,
        ids: Ids,
        *,
        source_mask: SourceMask | None = None,
        key_mask: Mask | None = None,
        teacher_forcing: float | None = None,
        parallel: bool | None = None,
    ) -> Logits:
        """The logits after each token of the target.

        With `teacher_forcing` below 1, each token after the first is the given one with that probability, and otherwise
        the model's most likely one (Bengio et al. 2015). It defaults to the model's value in training and to 1 in
        evaluation. `parallel` as in `RecurrentDecoder`.
        """
        default = self.teacher_forcing if self.training else 1.0
        ratio = default if teacher_forcing is None else teacher_forcing
        if not 0 <= ratio <= 1:
            raise InvalidOption(f"teacher_forcing must be 0 to 1, not {ratio!r}")
        if ratio < 1 and parallel:
            raise InvalidOption("with teacher_forcing below 1, a step reads the previous one; leave out parallel")
        state = self.start(len(ids), source=source, source_mask=source_mask)
        if ratio < 1:
            return self._free(ids, state, key_mask, ratio)
        x, _ = self.decoder(self.target(ids), state, key_mask=key_mask, parallel=parallel)
        return self.logits(x)

    def _free(self, ids: Tensor, state: DecoderState, key_mask: Tensor | None, ratio: float) -> Tensor:
        """Step by step, reading predicted tokens; the first real token of a row is always the given one."""
        forced = torch.rand(ids.shape, device=ids.device) < ratio
        steps: list[Tensor] = []
        for step in range(ids.shape[1]):
            token, real = ids[:, step], None if key_mask is None else key_mask[:, step : step + 1]
            if steps:
                token = torch.where(forced[:, step] | (state.time == 0), token, steps[-1][:, 0].argmax(-1))
            logits, state = self.extend(token[:, None], state, key_mask=real)
            steps.append(logits)
        return torch.cat(steps, 1)

    def initial_state(self, batch: int, source: Source | None = None) -> DecoderState:
        assert source is not None  # `start` checks it
        if source.align and self.decoder.alignment is None:
            raise InvalidInput("a decoder without attention has no alignment; leave out align")
        if source.streams:
            raise InvalidInput(f"{self.name} reads the tokens of a source and no streams; leave out source_streams")
        states, first = self.encode(source.ids, source_mask=source.mask)
        return self.decoder.start(first, states, source.mask, align=source.align)

    def extend_hidden(
        self, ids: Ids, state: DecoderState, key_mask: Mask | None = None, positions: Ids | None = None
    ) -> tuple[Hidden, DecoderState]:
        x, state = self.decoder(self.target(ids), state, key_mask=key_mask)
        return x, state

    def logits(self, x: Hidden) -> Logits:
        logits: Tensor = self.head(x)
        return logits

    def _check_source(self, source: Tensor, mask: Tensor | None) -> None:
        if source.dim() == 2 and source.shape[1] == 0:
            raise InvalidInput("the source is empty: give at least one token")
        if mask is not None:
            check_mask("source_mask", mask, source.shape)
        if self.decoder.alignment is not None:
            self.decoder.alignment.check_room(source.shape[1] if mask is None else int(mask.sum(1).max()))


def _layers(options: Seq2Seq.Options, features: int, *, bidirectional: bool = False) -> Recurrent:
    return Recurrent(
        features,
        options.width,
        cell=options.cell,
        layers=options.layers,
        bidirectional=bidirectional,
        dropout=options.dropout,
        forget_bias=options.forget_bias,
    )


def _decoder(options: Seq2Seq.Options, encoder_width: int) -> RecurrentDecoder:
    if options.decoder == "plain":
        return PlainDecoder(_layers(options, options.embedding))
    alignment = Alignment(
        options.width,
        encoder_width,
        score=options.score,
        width=options.alignment_width,
        max_length=options.max_source,
        reach=options.reach,
        radius=options.radius,
        renormalise=options.renormalise,
        centre=options.centre,
    )
    if options.decoder == "bahdanau":
        recurrent = _layers(options, options.embedding + encoder_width)
        return BahdanauDecoder(recurrent, alignment, options.embedding, options.maxout)
    fed = options.width if options.input_feeding else 0
    return LuongDecoder(_layers(options, options.embedding + fed), alignment, input_feeding=options.input_feeding)


class _Bridge(nn.Module):
    """From a bidirectional encoder to the decoder's initial state: linear and tanh, layer by layer.

    It reads the last states of both directions or, in Bahdanau's model, of the backward direction alone:
    s_0 = tanh(W_s h_1).
    """

    def __init__(self, options: Seq2Seq.Options) -> None:
        super().__init__()
        self.backward_only = options.decoder == "bahdanau"
        read = options.width * (1 if self.backward_only else 2)

        def build() -> nn.ModuleList:
            return nn.ModuleList(nn.Linear(read, options.width) for _ in range(options.layers))

        self.hidden = build()
        self.cell = build() if options.cell == "lstm" else None

    def forward(self, last: RecurrentState) -> RecurrentState:
        cell = None if last.cell is None or self.cell is None else self._project(last.cell, self.cell)
        return RecurrentState(self._project(last.hidden, self.hidden), cell)

    def _project(self, states: Tensor, projections: nn.ModuleList) -> Tensor:
        pairs = torch.unflatten(states, 1, (-1, 2))  # (batch, layers, directions, width)
        read = pairs[:, :, 1] if self.backward_only else pairs.flatten(2)
        return torch.stack([projection(read[:, layer]).tanh() for layer, projection in enumerate(projections)], 1)


@torch.no_grad()
def _initialise_bahdanau(model: Seq2Seq) -> None:
    """Appendix B.1: recurrent matrices orthogonal, W_a and U_a N(0, 0.001²), v_a and biases 0, the rest N(0, 0.01²)."""
    for name, parameter in model.named_parameters():
        last = name.rpartition(".")[2]
        if last.startswith("weight_hh"):
            for gate in torch.split(parameter, model.options.width):
                nn.init.orthogonal_(gate)
        elif last.startswith("bias") or last == "direction":
            nn.init.zeros_(parameter)
        elif parameter.dim():
            nn.init.normal_(parameter, std=0.001 if ".alignment." in name else 0.01)
    keep_starts(model)


__all__ = ["Seq2Seq"]
