"""GPT (Radford et al. 2018) and GPT-2 (2019): decoders with learned positions, post-norm and pre-norm.

GPT-3 has GPT-2's tensors; no checkpoint of it is public.
"""

from typing import Any

from longspan.attention.config import AttentionConfig
from longspan.errors import Unsupported
from longspan.hub.families.base import ACTIVATIONS, Config, Family, Field
from longspan.hub.tensor_names import rename
from longspan.nn.heads import Head

SIZES = (
    Field("width", "n_embd", 768),
    Field("layers", "n_layer", 12),
    Field("heads", "n_head", 12),
    Field("dropout", "resid_pdrop", 0.1),
    Field("embedding_dropout", "embd_pdrop", 0.1),
    Field("attention_dropout", "attn_pdrop", 0.1),
    Field("eps", "layer_norm_epsilon", 1e-5),
    Field("init_std", "initializer_range", 0.02),
    Field("tied", "tie_word_embeddings", True),
)
FIXED: Config = {"position": "learned", "scale": False, "init": "normal"}
# For the multiple-choice head; their cls_index is meant to be the last real token, which we use.
SUMMARY = {"summary_type": ("cls_index", "last"), "summary_use_proj": (True,), "summary_activation": (None,)}

# Conv1D stores weights as (inputs, outputs). attn.c_proj is square, so a missing transpose would go unnoticed.
LAYERS = (
    rename([f"stack.blocks.*.mixer.project.{part}" for part in "qkv"], "h.*.attn.c_attn", turned=True),
    rename("stack.blocks.*.mixer.out", "h.*.attn.c_proj", turned=True),
    rename("stack.blocks.*.around_mixer.norm", "h.*.ln_1"),
    rename("stack.blocks.*.feedforward.inner", "h.*.mlp.c_fc", turned=True),
    rename("stack.blocks.*.feedforward.outer", "h.*.mlp.c_proj", turned=True),
    rename("stack.blocks.*.around_feedforward.norm", "h.*.ln_2"),
)
OUTPUT = (rename("head.weight", "lm_head.weight"),)
HEADS = {
    "classify": (rename("heads.classify.out", "score"),),
    "choose": (rename("heads.choose.out", "multiple_choice_head.summary"),),
}
MASKS = (r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",)  # old files hold the causal mask


def token_dropout(given: Config) -> float:
    """The dropout before token labels."""
    rates = [given.get(key) for key in ("classifier_dropout", "hidden_dropout")]
    return float(next((value for value in rates if value is not None), 0.1))


def head(task: str, options: Config, given: Config) -> Head:
    """A text is classified by its last real token, the only one that has read all others."""
    if task == "tag":
        return Head(task=task, dropout=token_dropout(given))
    if task == "choose":
        return Head(task=task, pool="last", dropout=float(given.get("summary_first_dropout", 0.1)))
    return Head(task=task, pool="last", dropout=0.0, bias=task != "classify")


def _drop(record: dict[str, Any], options: Any) -> dict[str, Any]:
    """Their configuration has one key for each dropout."""
    return {**record, "embd_pdrop": options.dropout} if options.embedding_dropout is None else record


# GPT


def _adjust_gpt(options: dict[str, Any], given: Config) -> dict[str, Any]:
    return {**options, "hidden": 4 * options["width"]}


def _restore_gpt(record: dict[str, Any], options: Any) -> dict[str, Any]:
    if options.hidden != 4 * options.width:
        raise Unsupported(f"openai-gpt has hidden = 4 · width = {4 * options.width}, and this model {options.hidden}")
    return _drop(record, options)


GPT = Family(
    name="openai-gpt",
    model="decoder",
    base="transformer.",
    fields=(
        Field("vocabulary", "vocab_size", 40478),
        Field("max_length", "n_positions", 512),
        # Its "gelu" is the tanh approximation.
        Field("activation", "afn", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}),
        *SIZES,
    ),
    fixed={**FIXED, "norm_position": "post"},
    only=SUMMARY,
    architectures={
        "OpenAIGPTLMHeadModel": (),
        "OpenAIGPTModel": (),
        "OpenAIGPTDoubleHeadsModel": ("choose",),
        "OpenAIGPTForSequenceClassification": ("classify",),
    },
    alone="OpenAIGPTModel",
    head=head,
    body=(
        rename("embedding.weight", "tokens_embed.weight"),
        rename("embedding.position.weight", "positions_embed.weight"),
        *LAYERS,
    ),
    output=OUTPUT,
    speakers=("OpenAIGPTLMHeadModel", "OpenAIGPTDoubleHeadsModel"),
    heads=HEADS,
    ties={"lm_head.weight": "tokens_embed.weight"},
    untied=("lm_head.weight",),
    ignored=(*MASKS, r"(transformer\.)?position_ids"),
    adjust=_adjust_gpt,
    restore=_restore_gpt,
)

# GPT-2


def _scaled(width: int, heads: int, layers: int, *, by_width: bool, by_layer: bool) -> tuple[AttentionConfig, ...]:
    """Attention with GPT-2's scales: 1/√head_dim or 1, divided by the layer's number with `by_layer`."""
    if by_width and not by_layer:
        return (AttentionConfig("softmax"),)
    scale = (width // heads) ** -0.5 if by_width else 1.0
    return tuple(AttentionConfig("softmax", scale=scale / (layer + 1 if by_layer else 1)) for layer in range(layers))


def _adjust_gpt2(options: dict[str, Any], given: Config) -> dict[str, Any]:
    by_width = bool(given.get("scale_attn_weights", True))
    by_layer = bool(given.get("scale_attn_by_inverse_layer_idx", False))
    sizes = options["width"], options["heads"], options["layers"]
    options["attention"] = _scaled(*sizes, by_width=by_width, by_layer=by_layer)
    options["hidden"] = options["hidden"] or 4 * options["width"]
    return options


def _restore_gpt2(record: dict[str, Any], options: Any) -> dict[str, Any]:
    sizes = options.width, options.heads, options.layers
    for by_width in (True, False):
        for by_layer in (False, True):
            if options.attention == _scaled(*sizes, by_width=by_width, by_layer=by_layer):
                scaling = {"scale_attn_weights": by_width, "scale_attn_by_inverse_layer_idx": by_layer}
                return _drop({**record, **scaling}, options)
    raise Unsupported(f"gpt2 has dense attention in every layer, and this model {options.attention}")


GPT2 = Family(
    name="gpt2",
    model="decoder",
    base="transformer.",
    fields=(
        Field("vocabulary", "vocab_size", 50257),
        Field("max_length", "n_positions", 1024),
        Field("hidden", "n_inner"),
        Field("activation", "activation_function", "gelu_new", ACTIVATIONS),
        *SIZES,
    ),
    fixed={**FIXED, "norm_position": "pre", "residual_init": True},
    only={**SUMMARY, "add_cross_attention": (False,)},
    architectures={
        "GPT2LMHeadModel": (),
        "GPT2Model": (),
        "GPT2DoubleHeadsModel": ("choose",),
        "GPT2ForSequenceClassification": ("classify",),
        "GPT2ForTokenClassification": ("tag",),
        "GPT2ForQuestionAnswering": ("span",),
    },
    alone="GPT2Model",
    head=head,
    body=(
        rename("embedding.weight", "wte.weight"),
        rename("embedding.position.weight", "wpe.weight"),
        *LAYERS,
        rename("stack.norm", "ln_f"),
    ),
    output=OUTPUT,
    speakers=("GPT2LMHeadModel", "GPT2DoubleHeadsModel"),
    heads={
        **HEADS,
        "tag": (rename("heads.tag.out", "classifier"),),
        "span": (rename("heads.span.out", "qa_outputs"),),
    },
    ties={"lm_head.weight": "wte.weight"},
    untied=("lm_head.weight",),
    ignored=MASKS,
    adjust=_adjust_gpt2,
    restore=_restore_gpt2,
)
