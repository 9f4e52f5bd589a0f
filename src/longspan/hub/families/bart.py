"""BART (Lewis et al. 2020) and mBART (Liu et al. 2020): an encoder and a decoder that share token embeddings.

Classification uses the decoder, which reads the text too: `shift_right(ids, start)` of `models.base`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from longspan.errors import Unsupported
from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.tensor_names import Rule, rename
from longspan.models.text import DENSE
from longspan.nn.heads import Head

# Keys that BART and LED share.
SIZES = (
    Field("vocabulary", "vocab_size", 50265),
    Field("width", "d_model", 1024),
    Field("layers", "encoder_layers", 12),
    Field("decoder_layers", "decoder_layers", 12),
    Field("heads", "encoder_attention_heads", 16),
    Field("decoder_heads", "decoder_attention_heads", 16),
    Field("hidden", "encoder_ffn_dim", 4096),
    Field("decoder_hidden", "decoder_ffn_dim", 4096),
    Field("activation", "activation_function", "gelu", ACTIVATIONS),
    Field("dropout", "dropout", 0.1),
    Field("attention_dropout", "attention_dropout", 0.0),
    Field("hidden_dropout", "activation_dropout", 0.0),
    Field("init_std", "init_std", 0.02),
    Field("padding", "pad_token_id", 1),
    Field("start", "decoder_start_token_id", 2),
)
FIELDS = (
    *SIZES,
    Field("max_length", "max_position_embeddings", 1024),
    Field("source_length", "max_position_embeddings", 1024),
    Field("scale", "scale_embedding", False),
)
BLOCKS: Config = {
    "norm_position": "post",
    "norm": "layer",
    "eps": 1e-5,
    "position": "learned",
    "embedding_norm": True,
    "tied": True,
    "init": "normal",
    "decoder_attention": DENSE,
    "cross_attention": DENSE,
}
FIXED: Config = {**BLOCKS, "position_offset": 2, "encoder_attention": DENSE}
# Without ties the release uses two embeddings, and stores a third, `shared`, that nothing uses.
ONLY: dict[str, Sequence[Any]] = {
    "tie_word_embeddings": (True,),
    "is_decoder": (False,),
    "is_encoder_decoder": (True,),
}


TOKENS = {"decoder_start_token_id": 2, "eos_token_id": 2}


# Names


def attention(ours: str, theirs: str) -> tuple[Rule, ...]:
    """The projections of one attention."""
    return (
        *(rename(f"{ours}.project.{name}", f"{theirs}.{name}_proj") for name in ("q", "k", "v")),
        rename(f"{ours}.out", f"{theirs}.out_proj"),
    )


def around(ours: str, theirs: str) -> tuple[Rule, ...]:
    """The tensors of a layer other than attention."""
    return (
        rename(f"{ours}.around_mixer.norm", f"{theirs}.self_attn_layer_norm"),
        rename(f"{ours}.feedforward.inner", f"{theirs}.fc1"),
        rename(f"{ours}.feedforward.outer", f"{theirs}.fc2"),
        rename(f"{ours}.around_feedforward.norm", f"{theirs}.final_layer_norm"),
    )


_ENCODER, _DECODER = ("encoder.blocks.*", "encoder.layers.*"), ("decoder.blocks.*", "decoder.layers.*")
# All but the encoder's attention, which differs in LED.
COMMON = (
    rename("target.weight", "shared.weight"),
    rename("source.position.weight", "encoder.embed_positions.weight"),
    rename("source.norm", "encoder.layernorm_embedding"),
    rename("target.position.weight", "decoder.embed_positions.weight"),
    rename("target.norm", "decoder.layernorm_embedding"),
    *around(*_ENCODER),
    *around(*_DECODER),
    *attention(f"{_DECODER[0]}.mixer", f"{_DECODER[1]}.self_attn"),
    *attention(f"{_DECODER[0]}.cross", f"{_DECODER[1]}.encoder_attn"),
    rename(f"{_DECODER[0]}.around_cross.norm", f"{_DECODER[1]}.encoder_attn_layer_norm"),
)
BODY = (*COMMON, *attention(f"{_ENCODER[0]}.mixer", f"{_ENCODER[1]}.self_attn"))


def _row(_: Any, bias: Tensor) -> Sequence[int]:
    return 1, len(bias)


OUTPUT = (rename("logit_bias", "final_logits_bias", shape=_row),)
HEADS = {
    "classify": (
        rename("heads.classify.dense", "classification_head.dense"),
        rename("heads.classify.out", "classification_head.out_proj"),
    ),
    "span": (rename("heads.span.out", "qa_outputs"),),
}
TIES = dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight")


# Heads and options


def head(task: str, options: Config, given: Config) -> Head:
    """BART's heads: a text is classified by its last token, `</s>`."""
    if task == "span":
        return Head(task=task, dropout=0.0)
    dropout = float(given.get("classifier_dropout") or 0.0)
    return Head(task=task, pool="last", activation="tanh", dropout=dropout, drop_input=True)


def generates(given: Config) -> bool:
    """Whether the architecture has an output layer, and with it `final_logits_bias`."""
    named = given.get("architectures") or ["ForConditionalGeneration"]
    return str(named[0]).endswith("ForConditionalGeneration")


def adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    """The options that the architecture decides."""
    return {**options, "logit_bias": generates(given)}


def restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    """Adds the keys that depend on several of our options."""
    if options.source_length is None:
        raise Unsupported(f"a {record['model_type']} has separate positions for source and target; give source_length")
    for key, ours in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "hidden")):
        if record[f"decoder_{key}"] is None:
            record[f"decoder_{key}"] = getattr(options, ours)
    if record.get("decoder_start_token_id", 0) is None:
        del record["decoder_start_token_id"]
    if options.logit_bias and not options.tasks:
        (body,) = record["architectures"]
        base = body.removesuffix("Model").removesuffix("ForConditionalGeneration")
        record["architectures"] = [f"{base}ForConditionalGeneration"]
    return {**record, "is_encoder_decoder": True}


BART = Family(
    name="bart",
    model="transformer",
    base="model.",
    fields=FIELDS,
    fixed=FIXED,
    only=ONLY,
    architectures={
        "BartModel": (),
        "BartForConditionalGeneration": (),
        "BartForSequenceClassification": ("classify",),
        "BartForQuestionAnswering": ("span",),
    },
    head=head,
    body=BODY,
    heads=HEADS,
    output=OUTPUT,
    ties=TIES,
    ignored=(r"(.*\.)?(encoder|decoder)\.version",),
    tokens={**TOKENS, "forced_eos_token_id": 2},
    headed={"logit_bias": False},
    labels=3,
    adjust=adjust,
    restore=restore,
)

MBART = replace(
    BART,
    name="mbart",
    fields=[item for item in FIELDS if item.ours != "start"],  # its decoder starts with the language
    fixed={**FIXED, "norm_position": "pre"},
    architectures={name.replace("Bart", "MBart"): tasks for name, tasks in BART.architectures.items()},
    body=(*BODY, rename("encoder.norm", "encoder.layer_norm"), rename("decoder.norm", "decoder.layer_norm")),
    tokens={"eos_token_id": 2, "forced_eos_token_id": 2},
    labels=2,
)
