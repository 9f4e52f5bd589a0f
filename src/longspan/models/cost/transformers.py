"""The cost of Transformers: their bodies, and the layers around them."""

from functools import singledispatch

from torch import nn

from longspan.errors import InvalidInput
from longspan.models.cost.tally import Tally, activation_width, products, read
from longspan.models.decoder import Decoder
from longspan.models.electra import Electra
from longspan.models.encoder import Encoder
from longspan.models.etc_model import EtcModel, OfOneInput, PerInput
from longspan.models.series import SeriesTransformer
from longspan.models.table import TableTransformer
from longspan.models.transformer import Transformer
from longspan.models.vision.axial_transformer import AxialTransformer
from longspan.models.vision.image_decoder import ImageDecoder
from longspan.models.vision.vit import VisionTransformer
from longspan.nn.axial_blocks import AxialBlocks
from longspan.nn.block import Block
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.heads import Masked
from longspan.nn.residual import Residual
from longspan.nn.reversible_body import ReversibleBody
from longspan.nn.stack import Body, Stack
from longspan.nn.universal_stack import UniversalStack

# Bodies


@singledispatch
def pass_through(body: Body, tally: Tally, tokens: int, context: int = 0) -> None:
    """Adds the cost of a body; `context` is the length of the context, if it reads one."""
    raise AssertionError(f"no cost of {type(body).__name__}")


@pass_through.register
def _(body: Stack, tally: Tally, tokens: int, context: int = 0) -> None:
    for block in body.layers():
        _block(block, tally, tokens, context)
    tally.norm(body.norm, tokens, body.out_width)


@pass_through.register
def _(body: ReversibleBody, tally: Tally, tokens: int, context: int = 0) -> None:
    """Two streams, and the largest sub-layer: the backward pass recomputes sub-layers one by one."""
    halves = []
    for mix, change in body.pairs():
        halves += [Tally(), Tally()]
        halves[-2].mixer(mix.mixer, "attention", tokens, tokens)
        halves[-2].norm(mix.norm, tokens, mix.mixer.width)
        halves[-1].transition(change.feedforward, tokens)
        halves[-1].norm(change.norm, tokens, mix.mixer.width)
    largest = max(halves, key=lambda half: half.floats)
    for half in halves:
        tally.add_all(half, kept=half is largest)
    width = body.out_width if body.merge == "concat" else 2 * body.out_width
    tally.add("streams", 0, tokens * width)
    tally.norm(body.norm, tokens, body.out_width)
    tally.notes.append("the memory includes the largest sub-layer, since the backward pass recomputes one at a time")


@pass_through.register
def _(body: UniversalStack, tally: Tally, tokens: int, context: int = 0) -> None:
    width = body.out_width
    for step in range(body.steps):
        _block(body.block, tally, tokens, context, again=step > 0)
        if body.halting is not None:
            # The new average, and what it is computed from: the states after the step and the old average.
            averaged = 1 if body.halting.combine == "accumulate" else 2
            tally.add("halting", products(body.halting.unit, tokens), tokens * (averaged * width + 4))
    if body.halting is not None:
        tally.notes.append(f"with all of at most {body.steps} steps")
    tally.norm(body.norm, tokens, width)


def _block(block: Block, tally: Tally, tokens: int, context: int, *, again: bool = False) -> None:
    width = block.mixer.width
    tally.mixer(block.mixer, "attention", tokens, tokens)
    _around(block.around_mixer, tally, tokens, width)
    if block.cross is not None and block.around_cross is not None:
        tally.mixer(block.cross, "cross-attention", tokens, context, again=again)
        _around(block.around_cross, tally, tokens, width)
    if block.feedforward is not None and block.around_feedforward is not None:
        tally.transition(block.feedforward, tokens)
        _around(block.around_feedforward, tally, tokens, width)


def _around(residual: Residual, tally: Tally, tokens: int, width: int) -> None:
    """The norms of a residual connection."""
    tally.norm(residual.norm, tokens, width)
    if residual.norm_output is not None:
        tally.norm(residual.norm_output, tokens, width)


# Models


def _embed(layer: TokenEmbedding, tally: Tally, tokens: int) -> None:
    if layer.norm is not None:
        tally.norm(layer.norm, tokens, layer.weight.shape[1])
    if layer.project is not None:
        tally.add("embedding", products(layer.project, tokens), tokens * layer.weight.shape[1])


@read.register
def _(model: Encoder, length: int, tally: Tally) -> None:
    _embed(model.embedding, tally, length)
    pass_through(model.stack, tally, length)
    tally.add("output", 0, length * model.stack.out_width)


@read.register
def _(model: Decoder, length: int, tally: Tally) -> None:
    _embed(model.embedding, tally, length)
    pass_through(model.stack, tally, length)
    width = model.out_width
    if model.narrow is not None:
        tally.add("output", products(model.narrow, length), length * model.stack.out_width)
    if isinstance(model.head, Masked) and model.head.dense is not None:
        before, width = width, model.head.dense.out_features
        kept = before + (activation_width(str(model.options.head_activation)) - 1) * width
        tally.add("output", products(model.head.dense, length), length * kept)
        tally.norm(model.head.norm, length, width)
    tally.output(width, model.vocabulary, length)
    if model.options.logit_cap is not None:
        tally.add("output", 0, length * model.vocabulary)


@read.register
def _(model: Transformer, length: int, tally: Tally) -> None:
    target = length if model.max_length is None else min(length, model.max_length)
    _embed(model.target if model.source is None else model.source, tally, length)
    _embed(model.target, tally, target)
    pass_through(model.encoder, tally, length)
    tally.add("output", 0, length * model.options.width)  # what the decoder reads
    pass_through(model.decoder, tally, target, length)
    tally.output(model.options.width, model.vocabulary, target)
    tally.notes.append("source and target have this length, or their longest")


@read.register
def _(model: SeriesTransformer, length: int, tally: Tally) -> None:
    layer = model.embedding.linear
    tally.add("embedding", products(layer, length), length * layer.in_features)
    pass_through(model.stack, tally, length)
    tally.output(model.stack.out_width, model.options.values, length)


@read.register
def _(model: EtcModel, length: int, tally: Tally) -> None:
    tokens, width = length + model.options.global_tokens, model.options.width
    for norm in (model.embedding.norm, model.norm):
        tally.norm(nn.Identity() if norm is None else norm, tokens, width)
    pass_through(model.stack, tally, tokens)
    tally.add("output", 0, tokens * width)
    tally.notes.append(f"the length is that of the long input, besides {model.options.global_tokens} global tokens")


@read.register
def _(model: VisionTransformer, length: int, tally: Tally) -> None:
    layer = model.embedding.linear
    patches = length - (model.embedding.token is not None) - (model.embedding.distillation is not None)
    tally.add("embedding", products(layer, patches), patches * layer.in_features)
    pass_through(model.stack, tally, length)
    tally.add("output", 0, length * model.stack.out_width)
    tally.notes.append("the length counts the patches and the learned tokens")


@read.register
def _(model: ImageDecoder, length: int, tally: Tally) -> None:
    context = 0 if model.source_size is None else model.source_size[0] * model.source_size[1]
    pass_through(model.stack, tally, length, context)
    tally.output(model.stack.out_width, model.out.out_features, length)
    tally.notes.append("the length counts tokens: channels of pixels, or pixels with a mixture of logistics")


@read.register
def _(model: AxialTransformer, length: int, tally: Tally) -> None:
    height, width = model.size
    if length != height * width:
        raise InvalidInput(
            f"the length is the number of pixels, {height} × {width} = {height * width} for this model, not {length}"
        )
    for _ in range(model.channels):
        if model.read_channels is not None and model.exterior is not None:
            inputs, features = model.read_channels.in_channels, model.read_channels.out_channels
            tally.add("embedding", 2 * length * 9 * inputs * features, length * inputs)
            _grid(model.exterior, tally, model.size)
        _grid(model.outer, tally, model.size)
        for _ in range(height):
            pass_through(model.inner, tally, width)
        tally.output(model.inner.out_width, model.levels, length)
    if model.channels > 1:
        tally.notes.append(f"all {model.channels} channels; training reads one of them, so a step costs that part")


def _grid(blocks: AxialBlocks, tally: Tally, size: tuple[int, int]) -> None:
    """Blocks along the rows and the columns of an image."""
    height, width = size
    for row, column in blocks.pairs():
        for _ in range(height):
            _block(row, tally, width, 0)
        for _ in range(width):
            _block(column, tally, height, 0)


@read.register
def _(model: TableTransformer, length: int, tally: Tally) -> None:
    tally.add("embedding", 0, length * model.options.width)
    pass_through(model.stack, tally, length)
    tally.add("output", 0, length * model.stack.out_width)
    tally.notes.append("the length counts the columns and the token of the row")


@read.register
def _(model: Electra, length: int, tally: Tally) -> None:
    read(model.generator, length, tally)
    read(model.discriminator, length, tally)
    tally.notes.append("generator and discriminator, without their heads")


@products.register
def _(layer: PerInput, rows: int) -> int:
    return products(layer.of_global, layer.count) + products(layer.of_long, rows - layer.count)


@products.register
def _(layer: OfOneInput, rows: int) -> int:
    rows = rows - layer.count if layer.long else layer.count
    return 2 * rows * layer.in_features * layer.out_features


__all__ = ["pass_through"]
