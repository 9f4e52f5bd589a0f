"""From options to a stack of blocks: the parts that all Transformers of this package share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from longspan import config
from longspan.attention.base import Attention
from longspan.attention.config import AttentionConfig
from longspan.attention.mechanisms.linformer import LinformerAttention, share_projection
from longspan.config import option
from longspan.errors import InvalidOption, Unsupported
from longspan.models.attention_positions import RotaryLayer, attention_position, attention_positions
from longspan.models.body_embedding import absolute_position, embedding, position_width, table_width
from longspan.nn.biases import Alibi, RelativeBias
from longspan.nn.block import Block
from longspan.nn.convolution import SeparableConvolution
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.experts import ExpertLayer, Experts
from longspan.nn.feedforward import GATED, PLAIN, FeedForward
from longspan.nn.halting import Halting
from longspan.nn.multihead import QK_NORMS, MultiHead, Position
from longspan.nn.norm import NORMS, build_norm
from longspan.nn.positions import AxialPositions, LearnedPositions
from longspan.nn.residual import Residual
from longspan.nn.reversible_body import MERGES, ReversibleBody
from longspan.nn.rotary_scaling import RotaryScaling
from longspan.nn.stack import Body, Stack
from longspan.nn.transient_global import TransientGlobalHeads

POSITIONS = (
    "sinusoidal",
    "learned",
    "learned_relative",  # learned positions, and biases of scores by distance too (MPNet)
    "axial",
    "axial_sum",
    "rotary",
    "rotary_grid",
    "alibi",
    "relative",
    "none",
)

INITS = ("xavier", "normal", "fan_in")
SHARES = ("all", "attention", "feedforward")  # Lan et al. 2020, section 3.1


@dataclass(frozen=True, kw_only=True)
class BodyOptions(config.Options):
    """The sizes and choices of a stack of blocks; the defaults are the base model of Vaswani et al. 2017."""

    width: int = option(512, "width of the hidden states", low=1)
    layers: int = option(6, "number of blocks", low=1)
    heads: int = option(8, "attention heads", low=1)
    head_dim: int | None = option(None, "width of a head; width / heads unless given", low=1)
    key_dim: int | None = option(None, "width of a head's queries and keys; head_dim unless given", low=1)
    value_dim: int | None = option(None, "width of a head's values; head_dim unless given", low=1)
    persistent: int = option(0, "learned keys and values per head that every query reads (all-attention)", low=0)
    kv_heads: int | None = option(None, "key and value heads, each shared by several query heads", low=1)
    qk_norm: str = option(
        "none", "norm of queries and keys before rotation: of each head (Qwen3), or of all (OLMo 2)", choices=QK_NORMS
    )
    hidden: int = option(2048, "inner width of the feed-forward layer; 0: blocks without one", low=0)
    experts: Experts | None = option(None, "a table: experts in place of one feed-forward layer (gpt-oss)")
    activation: str = option("relu", "of the feed-forward layer", choices=(*PLAIN, *GATED))
    norm_position: str = option(
        "post",
        "norm after the sum with each sub-layer, before the sub-layer, of its output (OLMo 2), or both (Gemma 2)",
        choices=("post", "pre", "output", "both"),
        formerly="place",
    )
    norm: str = option("layer", "kind of norm", choices=tuple(NORMS))
    first_norm: bool = option(True, "pre: whether the first layer's attention has a norm before it; not in ModernBERT")
    parallel: bool = option(
        False, "pre: whether attention and feed-forward layer read the same states and are added at once (GPT-NeoX)"
    )
    eps: float = option(1e-5, "added to the variance in norms", low=0)
    bias: bool = option(True, "whether the linear layers of the blocks have biases")
    query_bias: bool | None = option(
        None, "whether the query, key and value layers have biases; as `bias` unless given"
    )
    output_bias: bool | None = option(None, "whether attention's output layer has a bias; as `bias` unless given")
    dropout: float = option(0.1, "on embeddings and on the output of each sub-layer", low=0, high=0.999)
    drop_path: float = option(
        0.0,
        "stochastic depth: share of examples that skip a sub-layer, from 0 to this at the top",
        low=0,
        high=0.999,
    )
    embedding_dropout: float | None = option(None, "on embeddings, if it differs from dropout", low=0, high=0.999)
    embedding_norm: bool = option(False, "whether embeddings are normalised before dropout (BERT, BART)")
    embedding_width: int | None = option(None, "width of the tables, if not `width` (ALBERT, ELECTRA)", low=1)
    embedding_projection: bool = option(False, "whether a layer follows tables of equal width too (ALBERT)")
    narrow_tokens: bool = option(
        False, "embedding_width: of tokens alone, with layers without bias to the width and back (OPT-350M)"
    )
    segments: int = option(0, "kinds of segments, such as first and second sentence: 2 (BERT)", low=0)
    attention_dropout: float = option(0.0, "on attention weights, if the mechanism has any", low=0, high=0.999)
    hidden_dropout: float = option(0.0, "inside the feed-forward layer", low=0, high=0.999)
    feedforward_chunk: int = option(0, "tokens per chunk of the feed-forward layer; 0: all at once", low=0)
    reversible: bool = option(False, "whether the blocks are reversible: all of them keep the activations of one")
    merge: str = option("concat", "of the two streams of reversible blocks", choices=MERGES)
    groups: int | None = option(None, "groups of layers that share weights; none: each layer has its own", low=1)
    share: str = option("all", "which weights the layers of a group share", choices=SHARES)
    position: str = option("sinusoidal", "kind of position encoding", choices=POSITIONS)
    position_offset: int = option(0, "learned: rows of the table before position 0 (RoBERTa, BART: 2)", low=0)
    rotary_base: float = option(10000.0, "rotary: base of the wavelengths", low=1)
    rotary_scaling: RotaryScaling | None = option(None, "rotary: scaled frequencies, for longer texts (Llama 3.1)")
    rotary_dim: int | None = option(None, "rotary: features of a head that are rotated; all unless given", low=2)
    rotary_layers: tuple[RotaryLayer, ...] | None = option(
        None, "rotary: rotation, base and scaling of each layer, repeated from the bottom up (Gemma 3, SmolLM3)"
    )
    relative_buckets: int = option(32, "relative: buckets of distances, one number per head in each (T5)", low=2)
    relative_distance: int = option(128, "relative: distance from which all share the last bucket (T5)", low=2)
    summary_block: int | None = option(
        None, "windows of encoders: tokens of a block whose summary every query reads too (LongT5: 16)", low=1
    )
    axes: tuple[int, ...] | None = option(None, "axial, rotary_grid: the sides of the grid", low=1)
    axis_widths: tuple[int, ...] | None = option(None, "axial: the width of each table, side by side", low=1)
    max_length: int | None = option(None, "the longest text; required by fixed-size tables", low=1)
    scale: bool = option(True, "whether embeddings are multiplied by the root of the width")
    init: str = option(
        "xavier", "xavier: Glorot; normal: N(0, init_std); fan_in: N(0, init_std/√inputs)", choices=INITS
    )
    init_std: float = option(0.02, "standard deviation of normal initial weights", low=0)
    residual_init: bool = option(False, "whether the last layer of each branch starts 1/√(2·layers) smaller (GPT-2)")


def spread(settings: Sequence[AttentionConfig], layers: int, stack_name: str) -> list[AttentionConfig]:
    """One configuration for each layer: the given ones, repeated from the bottom up."""
    if len(settings) > layers:
        raise InvalidOption(f"{stack_name} has {len(settings)} settings for {layers} layers; give at most one for each")
    return [settings[layer % len(settings)] for layer in range(layers)]


def build_stack(
    options: BodyOptions,
    settings: Sequence[AttentionConfig],
    *,
    stack_name: str,
    causal: bool,
    layers: int | None = None,
    cross: Sequence[AttentionConfig] | None = None,
    cross_length: int | None = None,
) -> Body:
    """The stack of blocks, each with its own attention. Errors name it by `stack_name` ("encoder", "decoder").

    `cross_length` is the longest context, if it differs from `max_length`.
    """
    layers = options.layers if layers is None else layers
    if options.reversible and (cross is not None or options.norm_position != "pre"):
        if cross is not None:
            raise Unsupported(f"{stack_name}: reversible blocks cannot read a context; leave out reversible")
        raise InvalidOption(
            f"{stack_name}: reversible blocks have their norms inside each branch; give norm_position='pre'"
        )
    if options.reversible and not options.hidden:
        raise InvalidOption(
            f"{stack_name}: reversible blocks need a feed-forward layer as their second branch; hidden is 0"
        )
    if options.reversible and options.drop_path:
        raise Unsupported(f"{stack_name}: reversible blocks cannot skip sub-layers; leave out drop_path")
    if options.norm_position != "pre" and (options.parallel or not options.first_norm):
        what = "parallel" if options.parallel else "first_norm=False"
        raise InvalidOption(f"{stack_name}: {what} needs norms before each sub-layer; give norm_position='pre'")
    if options.parallel and (cross is not None or options.reversible or not options.hidden):
        raise Unsupported(
            f"{stack_name}: parallel blocks have attention and a feed-forward layer, and neither a context nor "
            "reversible layers; leave out parallel"
        )
    positions = attention_positions(options, options.key_dim or _head_dim(options), causal, layers, stack_name)
    summaries = None  # the decoder of an encoder–decoder has none
    if options.summary_block is not None and not causal:
        sizes = options.relative_buckets, options.relative_distance
        summaries = RelativeBias(options.heads, *sizes)
    mixer_configs = spread(settings, layers, f"{stack_name} self-attention")
    reader_configs = None if cross is None else spread(cross, layers, f"{stack_name} cross-attention")
    order, share = _groups(options, layers, stack_name), "none" if options.groups is None else options.share
    mixers: list[MultiHead] = []
    readers: list[MultiHead | None] = []
    changes: list[FeedForward | ExpertLayer | None] = []
    for layer, group in enumerate(order):
        first = order.index(group)
        shared = share if first < layer else "none"
        same = mixer_configs[layer] == mixer_configs[first] and positions[layer] is positions[first]
        if shared != "none" and not same:
            raise InvalidOption(f"{stack_name}: layers that share weights have the same attention; give one setting")
        if shared == "all":
            continue
        if shared == "attention":
            mixers.append(mixers[first])
            readers.append(readers[first])
        else:
            where = f"{stack_name} self-attention, layer {layer}"
            mixers.append(
                _mixer(
                    options, mixer_configs[layer], where, causal=causal, position=positions[layer], summaries=summaries
                )
            )
            where = f"{stack_name} cross-attention, layer {layer}"
            readers.append(
                None if reader_configs is None else _reader(options, reader_configs[layer], where, cross_length)
            )
        changes.append(changes[first] if shared == "feedforward" else _feedforward(options))
    stack: Body
    if options.reversible:
        stack = ReversibleBody(
            [(mixer, change) for mixer, change in zip(mixers, changes) if change is not None],
            merge=options.merge,
            norm=options.norm,
            eps=options.eps,
            dropout=options.dropout,
        )
    else:
        last = max(len(mixers) - 1, 1)
        blocks = [
            Block(
                mixer,
                change,
                cross=reader,
                residual=_residual(options, options.drop_path * index / last),
                parallel=options.parallel,
            )
            for index, (mixer, change, reader) in enumerate(zip(mixers, changes, readers))
        ]
        if not options.first_norm:
            blocks[0].around_mixer.norm = nn.Identity()
        stack = Stack(blocks, last_norm(options), order if share == "all" else None)
    if any(isinstance(m, LinformerAttention) and m.options.sharing == "layerwise" for m in stack.modules()):
        share_projection(stack)
    return stack


def _groups(options: BodyOptions, layers: int, stack_name: str) -> list[int]:
    """The group of each layer, of equal sizes or nearly. Without sharing, each layer is a group of its own."""
    groups = options.groups or layers
    if groups > layers:
        raise InvalidOption(f"{stack_name}: {groups} groups for {layers} layers; give at most one for each")
    if options.reversible and options.groups is not None:
        raise Unsupported(f"{stack_name}: reversible blocks cannot share weights; leave out groups")
    return [layer * groups // layers for layer in range(layers)]


def build_block(
    options: BodyOptions,
    setting: AttentionConfig,
    *,
    stack_name: str,
    causal: bool,
    cross: AttentionConfig | None = None,
    cross_length: int | None = None,
    change: nn.Module | None = None,
) -> Block:
    """One block; `change` replaces the feed-forward layer."""
    for name, value in (("parallel", options.parallel), ("summary_block", options.summary_block)):
        if value:
            raise Unsupported(f"{stack_name}: the blocks of this model have no {name}; leave it out")
    if not options.first_norm:
        raise Unsupported(f"{stack_name}: all layers of this model are one block, so the first one has its norm too")
    position = attention_position(options, options.key_dim or _head_dim(options), causal)
    mixer = _mixer(options, setting, f"{stack_name} self-attention", causal=causal, position=position)
    reader = None if cross is None else _reader(options, cross, f"{stack_name} cross-attention", cross_length)
    return Block(mixer, change or _feedforward(options), cross=reader, residual=_residual(options))


def last_norm(options: BodyOptions) -> nn.Module:
    """The norm at the end of a stack: needed unless the last block ends with a norm."""
    return build_norm("none" if options.norm_position == "post" else options.norm, options.width, options.eps)


def _feedforward(options: BodyOptions) -> FeedForward | ExpertLayer | None:
    if not options.hidden:
        return None
    if options.experts is not None:
        if options.hidden_dropout or options.feedforward_chunk or not options.bias:
            raise Unsupported("experts have biases, no dropout inside and no chunks; leave out such options")
        return ExpertLayer(options.width, options.hidden, options.experts)
    return FeedForward(
        options.width,
        options.hidden,
        options.activation,
        bias=options.bias,
        dropout=options.hidden_dropout,
        chunk=options.feedforward_chunk,
    )


def _head_dim(options: BodyOptions) -> int:
    if options.head_dim is None and options.width % options.heads:
        raise InvalidOption(f"{options.heads} heads do not divide the width {options.width}; give head_dim")
    return options.head_dim or options.width // options.heads


def _residual(options: BodyOptions, drop_path: float = 0.0) -> Callable[[], Residual]:
    return lambda: Residual(
        options.width,
        norm=options.norm,
        norm_position=options.norm_position,
        dropout=options.dropout,
        eps=options.eps,
        drop_path=drop_path,
    )


def _mixer(
    options: BodyOptions,
    setting: AttentionConfig,
    where: str,
    *,
    causal: bool,
    position: Position | None,
    cross: bool = False,
    summaries: RelativeBias | None = None,
) -> MultiHead:
    try:
        mechanism = setting.build(
            heads=options.heads,
            head_dim=options.key_dim or _head_dim(options),
            value_dim=options.value_dim or _head_dim(options),
            key_heads=options.kv_heads,
            causal=causal,
            max_length=options.max_length,
            dropout=options.attention_dropout,
        )
        if cross and not mechanism.supports.cross:
            raise Unsupported(f"{setting.name} cannot read a context, only its own sequence")
        if cross and not mechanism.supports.cross_rows:
            raise Unsupported(
                f"{setting.name} compares positions of two sequences: a decoder cannot use it step by step"
            )
        if isinstance(position, (Alibi, RelativeBias)) and not mechanism.supports.bias:
            raise Unsupported(f"{setting.name} takes no bias on its scores, which {options.position} positions need")
        kv_heads = options.kv_heads if mechanism.projects == ("q", "k", "v") else None
        kind: Callable[..., MultiHead] = MultiHead
        block = options.summary_block
        if summaries is not None and block is not None:
            kind = partial(
                TransientGlobalHeads, block=block, summary_position=summaries, norm=options.norm, eps=options.eps
            )
        return kind(
            options.width,
            mechanism,
            kv_heads=kv_heads,
            persistent=0 if cross else options.persistent,
            position=position,
            qk_norm="none" if cross else options.qk_norm,
            qk_norm_kind=options.norm,
            qk_norm_eps=options.eps,
            bias=options.bias if options.query_bias is None else options.query_bias,
            out_bias=options.bias if options.output_bias is None else options.output_bias,
        )
    except (Unsupported, InvalidOption) as error:
        raise type(error)(f"{where}: {error}") from None


def _reader(options: BodyOptions, setting: AttentionConfig, where: str, longest: int | None = None) -> MultiHead:
    """Cross-attention on a context of at most `longest` tokens, if that differs from `max_length`."""
    options = options if longest is None else replace(options, max_length=longest)
    return _mixer(options, setting, where, causal=False, position=None, cross=True)


def mechanisms(model: nn.Module) -> list[Attention]:
    """All mechanisms of a model, in order."""
    return [module for module in model.modules() if isinstance(module, Attention)]


@torch.no_grad()
def initialise(model: nn.Module, options: BodyOptions) -> None:
    """Draws the initial weights; the weights of mechanisms keep the start that their papers give.

    `fan_in` is the start of Child et al. 2019, section 6: N(0, 0.125/√inputs) for layers and tokens, and for each of t
    tables of positions N(0, 0.125/√(width·t)). A later release reads 0.125/inputs as the variance: init_std = √0.125.
    """
    if options.init in ("normal", "fan_in"):
        by_fan, halting = options.init == "fan_in", []
        for name, module in model.named_modules():
            if ".mechanism" in name:
                continue
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=options.init_std * (module.in_features**-0.5 if by_fan else 1.0))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, TokenEmbedding):
                nn.init.normal_(module.weight, std=options.init_std * (options.width**-0.5 if by_fan else 1.0))
                if module.padding is not None:
                    module.weight[module.padding] = 0
                if module.segment is not None:
                    nn.init.normal_(module.segment, std=options.init_std * (options.width**-0.5 if by_fan else 1.0))
            elif isinstance(module, (LearnedPositions, AxialPositions)) and by_fan:
                tables = list(module.parameters())
                for table in tables:
                    nn.init.normal_(table, std=options.init_std * (options.width * len(tables)) ** -0.5)
            elif isinstance(module, ExpertLayer) and not by_fan:
                module.reset_parameters(options.init_std)
            elif isinstance(module, Halting):
                halting.append(module)
        for module in halting:  # its bias sets how soon positions stop
            module.reset()
    else:
        for module in model.modules():
            if isinstance(module, FeedForward):
                for linear in (module.inner, module.outer):
                    nn.init.xavier_uniform_(linear.weight)
                    if linear.bias is not None:
                        nn.init.zeros_(linear.bias)
    for module in model.modules() if options.residual_init else ():
        if isinstance(module, (MultiHead, FeedForward, SeparableConvolution)):
            last = module.out if isinstance(module, MultiHead) else module.outer
            for layer in last.modules():
                if isinstance(layer, nn.Linear):
                    layer.weight.mul_((2 * options.layers) ** -0.5)


__all__ = [
    "BodyOptions",
    "absolute_position",
    "build_block",
    "build_stack",
    "embedding",
    "initialise",
    "last_norm",
    "mechanisms",
    "position_width",
    "spread",
    "table_width",
]
