"""T5 (Raffel et al. 2020), v1.0 and v1.1: an encoder–decoder with learned biases of scores by distance.

Scores are not scaled. One table of biases serves all layers of a stack; cross-attention has none. The output layer is
the embedding, of states divided by √width (v1.0), or a layer of its own (v1.1, Flan-T5).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longspan.attention.config import AttentionConfig
from longspan.errors import Unsupported
from longspan.hub.families.base import Config, Family, Field
from longspan.hub.tensor_names import Rule, rename
from longspan.nn.feedforward import GATED
from longspan.nn.heads import Head

UNSCALED = (AttentionConfig("softmax", scale=1.0),)
# "gated-gelu" has always meant the tanh approximation.
ACTIVATIONS = {
    "relu": "relu",
    "gated-gelu": "geglu_tanh",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-gelu_new": "geglu_tanh",
    "gated-silu": "swiglu",
    "gated-relu": "reglu",
}
SIZES = (
    Field("vocabulary", "vocab_size", 32128),
    Field("width", "d_model", 512, aliases=("hidden_size",)),
    Field("head_dim", "d_kv", 64, aliases=("head_dim",)),
    Field("hidden", "d_ff", 2048),
    Field("layers", "num_layers", 6, aliases=("num_hidden_layers",)),
    Field("heads", "num_heads", 8, aliases=("num_attention_heads",)),
    Field("relative_buckets", "relative_attention_num_buckets", 32),
    Field("relative_distance", "relative_attention_max_distance", 128),
    Field("activation", "feed_forward_proj", "relu", ACTIVATIONS),
    Field("dropout", "dropout_rate", 0.1),
    Field("eps", "layer_norm_epsilon", 1e-6),
)
BLOCKS: Config = {
    "norm_position": "pre",
    "norm": "rms",
    "bias": False,
    "position": "relative",
    "scale": False,
    "init": "normal",
}
ONLY = {"is_decoder": (False,)}
TIES = dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight")


# Names


def _is_gated(options: Any) -> bool:
    return options.activation in GATED


def _is_plain(options: Any) -> bool:
    return options.activation not in GATED


def attention(ours: str, theirs: str) -> tuple[Rule, ...]:
    """The projections of one attention."""
    projections = (rename(f"{ours}.project.{name}", f"{theirs}.{name}") for name in "qkv")
    return (*projections, rename(f"{ours}.out", f"{theirs}.o"))


def stack(ours: str, theirs: str, *, cross: bool = False, name: str = "SelfAttention") -> tuple[Rule, ...]:
    """The layers of a stack: attention, cross-attention in the decoder, and the feed-forward layer."""
    block, layer = f"{ours}.blocks.*", f"{theirs}.block.*.layer"
    last = f"{layer}.{2 if cross else 1}"
    dense = f"{last}.DenseReluDense"
    rules = (
        *attention(f"{block}.mixer", f"{layer}.0.{name}"),
        rename(
            f"{ours}.blocks.0.mixer.position.weight", f"{theirs}.block.0.layer.0.{name}.relative_attention_bias.weight"
        ),
        rename(f"{block}.around_mixer.norm", f"{layer}.0.layer_norm"),
        replace(rename(f"{block}.feedforward.inner", (f"{dense}.wi_0", f"{dense}.wi_1")), when=_is_gated),
        replace(rename(f"{block}.feedforward.inner", f"{dense}.wi"), when=_is_plain),
        rename(f"{block}.feedforward.outer", f"{dense}.wo"),
        rename(f"{block}.around_feedforward.norm", f"{last}.layer_norm"),
        rename(f"{ours}.norm", f"{theirs}.final_layer_norm"),
    )
    if not cross:
        return rules
    return (
        *rules,
        *attention(f"{block}.cross", f"{layer}.1.EncDecAttention"),
        rename(f"{block}.around_cross.norm", f"{layer}.1.layer_norm"),
    )


# Heads and options


def head(task: str, options: Config, given: Config) -> Head:
    """T5's heads: a text is classified by its last token, `</s>`; words are labelled by the encoder alone."""
    dropout = float(given.get("classifier_dropout") or 0.0)
    if task == "span":
        return Head(task=task, dropout=0.0)
    if task == "tag":
        return Head(task=task, dropout=dropout)
    return Head(task=task, pool="last", activation="tanh", dropout=dropout, drop_input=True)


def complete(given: Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the tensors say of the output layer.

    `tie_word_embeddings` has meant two things: whether the output layer is the embedding, and whether states are scaled
    before it. transformers 5 writes true for every model and `scale_decoder_outputs` for the second.
    """
    scaled = given.get("scale_decoder_outputs", given.get("tie_word_embeddings") is not False)
    table, output = tensors.get("shared.weight"), tensors.get("lm_head.weight")
    tied = output is None or (table is not None and torch.equal(output, table))
    return {**given, "scale_decoder_outputs": bool(scaled), "tie_word_embeddings": tied}


def adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    rate = options["dropout"]
    if "start" in options and options["start"] is None:  # theirs has no default, and every released model has 0
        options["start"] = 0
    options["scale_output"] = bool(given.get("scale_decoder_outputs", given.get("tie_word_embeddings") is not False))
    return {**options, "attention_dropout": rate, "hidden_dropout": rate}


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    if record["num_decoder_layers"] is None:
        record["num_decoder_layers"] = options.layers
    if options.head_dim is None:
        record["d_kv"] = options.width // options.heads
    if options.decoder_heads not in (None, options.heads) or options.decoder_hidden not in (None, options.hidden):
        raise Unsupported(f"both stacks of a {record['model_type']} have the same heads and hidden width")
    if not options.tasks and not options.tied:
        record["architectures"] = [record["architectures"][0].replace("Model", "ForConditionalGeneration")]
    if options.start is None:
        record["decoder_start_token_id"] = 0
    return {**record, "scale_decoder_outputs": options.scale_output, "is_encoder_decoder": True}


def restore_encoder(record: dict[str, Any], options: Any) -> dict[str, Any]:
    if options.head_dim is None:
        record["d_kv"] = options.width // options.heads
    return {**record, "is_encoder_decoder": False}


def adjust_encoder(options: dict[str, Any], given: Config) -> dict[str, Any]:
    rate = options["dropout"]
    if "start" in options and options["start"] is None:  # theirs has no default, and every released model has 0
        options["start"] = 0
    return {**options, "attention_dropout": rate, "hidden_dropout": rate}


T5_ENCODER = Family(
    name="t5",
    model="encoder",
    base="transformer.",
    fields=SIZES,
    fixed={**BLOCKS, "attention": UNSCALED},
    only=ONLY,
    architectures={"T5EncoderModel": (), "T5ForTokenClassification": ("tag",)},
    head=head,
    body=(rename("embedding.weight", "shared.weight"), *stack("stack", "encoder")),
    heads={"tag": (rename("heads.tag.out", "classifier"),)},
    ties={"encoder.embed_tokens.weight": "shared.weight"},
    ignored=(r"(transformer\.)?decoder\..*", r"lm_head\.weight", r"qa_outputs\..*", r"classification_head\..*"),
    adjust=adjust_encoder,
    restore=restore_encoder,
)
T5 = Family(
    name="t5",
    model="transformer",
    base="",
    bases={"T5ForSequenceClassification": "transformer."},
    fields=(
        *SIZES,
        Field("decoder_layers", "num_decoder_layers"),
        Field("tied", "tie_word_embeddings", True),
        Field("start", "decoder_start_token_id"),
    ),
    fixed={
        **BLOCKS,
        "shared_embedding": True,
        "encoder_attention": UNSCALED,
        "decoder_attention": UNSCALED,
        "cross_attention": UNSCALED,
    },
    only=ONLY,
    architectures={
        "T5ForConditionalGeneration": (),
        "T5Model": (),
        "T5ForSequenceClassification": ("classify",),
        "T5ForQuestionAnswering": ("span",),
    },
    alone="T5Model",
    head=head,
    body=(
        rename("target.weight", "shared.weight"),
        *stack("encoder", "encoder"),
        *stack("decoder", "decoder", cross=True),
    ),
    heads={
        "classify": (
            rename("heads.classify.dense", "classification_head.dense"),
            rename("heads.classify.out", "classification_head.out_proj"),
        ),
        "span": (rename("heads.span.out", "qa_outputs"),),
    },
    output=(rename("head.weight", "lm_head.weight"),),
    speakers=("T5ForConditionalGeneration",),
    ties=TIES,
    untied=("lm_head.weight",),
    ignored=(r"(transformer\.)?decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    tokens={"decoder_start_token_id": 0, "eos_token_id": 1},
    adjust=adjust,
    restore=restore,
    complete=complete,
    encoder=T5_ENCODER,
)
