"""OPT (Zhang et al. 2022): a decoder with learned positions; the one of 350M has post-norm and narrow tokens."""

from typing import Any

from longspan.errors import Unsupported
from longspan.hub.families import bart
from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.tensor_names import rename
from longspan.nn.heads import Head

BLOCK, LAYER = "stack.blocks.*", "layers.*"


def head(task: str, options: Config, given: Config) -> Head:
    """A text is classified by its last real token."""
    return Head(task=task, pool="last", dropout=0.0, bias=task != "classify")


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    if options["norm_position"] == "pre" and given.get("_remove_final_layer_norm"):
        raise Unsupported("config.json: _remove_final_layer_norm is True; for opt it can be False")
    width = options["embedding_width"] or options["width"]
    return {**options, "embedding_width": width, "narrow_tokens": width != options["width"]}


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    width = options.embedding_width or options.width
    if width != options.width and not options.narrow_tokens:
        raise Unsupported("opt has positions of the model's width; give narrow_tokens")
    return {**record, "word_embed_proj_dim": width}


OPT = Family(
    name="opt",
    model="decoder",
    base="model.decoder.",
    bases={"OPTModel": "decoder."},
    fields=(
        Field("vocabulary", "vocab_size", 50272),
        Field("width", "hidden_size", 768),
        Field("layers", "num_hidden_layers", 12),
        Field("heads", "num_attention_heads", 12),
        Field("hidden", "ffn_dim", 3072),
        Field("activation", "activation_function", "relu", ACTIVATIONS),
        Field("max_length", "max_position_embeddings", 2048),
        Field("norm_position", "do_layer_norm_before", True, {True: "pre", False: "post"}),
        Field("embedding_width", "word_embed_proj_dim"),
        Field("bias", "enable_bias", True),
        Field("dropout", "dropout", 0.1),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("init_std", "init_std", 0.02),
        Field("padding", "pad_token_id", 1),
        Field("tied", "tie_word_embeddings", True),
    ),
    fixed={
        "norm": "layer",
        "eps": 1e-5,
        "position": "learned",
        "position_offset": 2,
        "scale": False,
        "embedding_dropout": 0.0,
        "init": "normal",
    },
    only={"layer_norm_elementwise_affine": (True,)},
    architectures={
        "OPTForCausalLM": (),
        "OPTModel": (),
        "OPTForSequenceClassification": ("classify",),
        "OPTForQuestionAnswering": ("span",),
    },
    alone="",  # every class has a prefix
    head=head,
    body=(
        rename("embedding.weight", "embed_tokens.weight"),
        rename("embedding.position.weight", "embed_positions.weight"),
        rename("embedding.project", "project_in"),
        *bart.attention(f"{BLOCK}.mixer", f"{LAYER}.self_attn"),
        *bart.around(BLOCK, LAYER),
        rename("stack.norm", "final_layer_norm"),
        rename("narrow", "project_out"),
    ),
    output=(rename("head.weight", "lm_head.weight"),),
    speakers=("OPTForCausalLM",),
    heads={
        "classify": (rename("heads.classify.out", "score"),),
        "span": (rename("heads.span.out", "qa_outputs"),),
    },
    ties={"lm_head.weight": "embed_tokens.weight"},
    untied=("lm_head.weight",),
    tokens={"bos_token_id": 2, "eos_token_id": 2},
    adjust=_adjust,
    restore=_restore,
)
