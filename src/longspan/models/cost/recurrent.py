"""The cost of recurrent models."""

from functools import singledispatch

from torch import nn

from longspan.models.classics.elmo import Elmo
from longspan.models.classics.recurrent import RecurrentLanguageModel, SeriesRegressor
from longspan.models.classics.seq2seq import Seq2Seq
from longspan.models.cost.tally import Tally, products, read
from longspan.nn.alignment import Alignment
from longspan.nn.characters import CharacterEncoder
from longspan.nn.projected_lstm import ProjectedLstm
from longspan.nn.recurrent import Recurrent
from longspan.nn.recurrent_decoder import BahdanauDecoder, LuongDecoder, RecurrentDecoder

GATES = {"elman": 1, "lstm": 4, "gru": 3}
# Numbers that a step keeps, in widths: its output; an LSTM also its gates, its cell and the cell's tanh; a GRU its
# gates and what they multiply.
KEPT = {"elman": 1, "lstm": 1 + 4 + 2, "gru": 1 + 3 + 3}


def _layers(layers: Recurrent, tally: Tally, tokens: int) -> None:
    width, features = layers.width, layers.layers.input_size
    for _ in range(layers.layers.num_layers):
        flops = 2 * tokens * GATES[layers.cell] * width * (features + width)
        kept = tokens * (layers.directions * KEPT[layers.cell] * width + features)
        tally.add("recurrent layers", layers.directions * flops, kept)
        features = layers.out_width


@read.register
def _(model: RecurrentLanguageModel, length: int, tally: Tally) -> None:
    _layers(model.recurrent, tally, length)
    tally.output(model.options.width, model.vocabulary, length)


@read.register
def _(model: SeriesRegressor, length: int, tally: Tally) -> None:
    _layers(model.recurrent, tally, length)
    tally.output(model.options.width, model.options.values, length)


# Encoder and decoder


@read.register
def _(model: Seq2Seq, length: int, tally: Tally) -> None:
    _layers(model.encoder, tally, length)
    tally.add("recurrent layers", 0, length * model.encoder.out_width)  # what the decoder reads
    if model.bridge is not None:
        for line in (*model.bridge.hidden, *(model.bridge.cell or ())):
            tally.add("bridge", products(line, 1), line.in_features + line.out_features)
    decode(model.decoder, tally, length, length)
    _layers(model.decoder.recurrent, tally, length)
    tally.output(model.decoder.out_width, model.vocabulary, length)
    tally.notes.append("source and target have this length")


@singledispatch
def decode(decoder: RecurrentDecoder, tally: Tally, tokens: int, source: int) -> None:
    """Adds the layers around a decoder's recurrent layers; a decoder without attention has none."""


@decode.register
def _(decoder: BahdanauDecoder, tally: Tally, tokens: int, source: int) -> None:
    assert decoder.alignment is not None
    _align(decoder.alignment, tally, tokens, source, together=False)
    tally.add("deep output", products(decoder.deep, tokens), tokens * decoder.deep.in_features)


@decode.register
def _(decoder: LuongDecoder, tally: Tally, tokens: int, source: int) -> None:
    assert decoder.alignment is not None
    _align(decoder.alignment, tally, tokens, source, together=not decoder.sequential)
    tally.add("attention: projections", products(decoder.mix, tokens), tokens * decoder.mix.in_features)


def _align(layer: Alignment, tally: Tally, tokens: int, source: int, *, together: bool) -> None:
    """The scores of every pair and the weighted sums; `together`: all queries at once, in pieces.

    The additive score's product with a vector is counted, although torch's counter omits it.
    """
    projections = kept = 0
    compared = layer.key_width
    if layer.score == "general":
        projections, compared = products(layer.change, source), layer.change.out_features
        kept = source * compared
    elif layer.score == "additive":
        projections = products(layer.change_query, tokens) + products(layer.change_key, source)
        compared = layer.change_query.out_features
        kept = source * compared + (0 if together else tokens * source * compared)  # each tanh, unless in pieces
    elif layer.score == "location":
        compared = layer.places.shape[1]
        kept = source * compared
    if layer.reach == "local_p":
        projections += products(layer.place_hidden, tokens) + products(layer.place, tokens)
        kept += tokens * (layer.place.in_features + 3 * source)  # the Gaussian
    tally.add("attention: projections", projections, 0)
    tally.add("attention", 2 * tokens * source * (compared + layer.key_width), kept + 2 * tokens * source)


# ELMo


@read.register
def _(model: Elmo, length: int, tally: Tally) -> None:
    _characters(model.tokens, tally, length)
    for direction in (model.forward_lm, model.backward_lm):
        for layer in direction.layers:
            assert isinstance(layer, ProjectedLstm)
            flops = sum(2 * length * weight.numel() for weight in layer.parameters() if weight.dim() == 2)
            kept = KEPT["lstm"] * layer.cells + 2 * layer.projection
            kept += 0 if layer.clip is None else layer.cells + layer.projection  # before clipping
            tally.add("recurrent layers", flops, length * kept)
    tally.add("output", 0, length * 2 * model.options.projection * (model.options.layers + 1))
    tally.notes.append("all words are different and of maximum length; without the output layer")


def _characters(layer: CharacterEncoder, tally: Tally, words: int) -> None:
    flops, floats = 0, words * layer.characters * layer.embedding.embedding_dim
    for convolution in layer.convolutions:
        assert isinstance(convolution, nn.Conv1d)
        maps, width, size = convolution.weight.shape
        positions = layer.characters - size + 1
        flops += 2 * words * positions * maps * width * size
        floats += words * maps * (positions + 1)  # the input and output of the maximum
    width = layer.projection.in_features
    flops += len(layer.highways) * 2 * 2 * words * width * width + products(layer.projection, words)
    floats += words * width * (1 + 3 * len(layer.highways))
    tally.add("characters", flops, floats)


__all__ = ["decode"]
