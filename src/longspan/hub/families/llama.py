"""Llama (Touvron et al. 2023): a decoder with rotary positions, RMS norms, SwiGLU and grouped queries."""

import math
from typing import Any

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.families.base import Config, Family, Field
from longspan.hub.families.gpt import token_dropout
from longspan.hub.tensor_names import rename
from longspan.nn.heads import Head
from longspan.nn.rotary_scaling import RotaryScaling

GATES = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
    "sigmoid": "glu",
}
THETA = 10000.0


def head(task: str, options: Config, given: Config) -> Head:
    """A text is classified by its last real token."""
    if task == "tag":
        return Head(task=task, dropout=token_dropout(given), bias=bool(given.get("token_classification_bias", True)))
    return Head(task=task, pool="last", dropout=0.0, bias=task != "classify")


def _rope(given: Config) -> dict[str, Any]:
    """The rotary settings of a configuration, old or new, in the current form."""
    rope = dict(given.get("rope_scaling") or given.get("rope_parameters") or {})
    rope.setdefault("rope_theta", given.get("rope_theta", THETA))
    rope["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
    if "original_max_position_embeddings" in given:
        rope["original_max_position_embeddings"] = given["original_max_position_embeddings"]
    rope.setdefault("original_max_position_embeddings", given.get("max_position_embeddings", 2048))
    return rope


def _scaling(rope: dict[str, Any], longest: int) -> RotaryScaling | None:
    kind = rope["rope_type"]
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        why = "; its turns change with the length of the text" if kind in ("dynamic", "longrope") else ""
        raise Unsupported(f"config.json: rope_type is {kind!r}; it can be default, linear, llama3 or yarn{why}")
    original = int(rope["original_max_position_embeddings"])
    factor = rope.get("factor")
    if factor is None:
        if kind != "yarn":
            raise InvalidInput(f"config.json: rope_type {kind} lacks its factor")
        factor = longest / original
    if kind == "linear":
        return RotaryScaling(kind=kind, factor=float(factor))
    if kind == "llama3":
        missing = [key for key in ("low_freq_factor", "high_freq_factor") if key not in rope]
        if missing:
            raise InvalidInput(f"config.json: rope_type llama3 lacks its {missing[0]}")
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return RotaryScaling(kind=kind, factor=float(factor), original_length=original, low=low, high=high)
    return RotaryScaling(
        kind=kind,
        factor=float(factor),
        original_length=original,
        low=float(rope.get("beta_slow") or 1),
        high=float(rope.get("beta_fast") or 32),
        amplitude=_amplitude(rope, float(factor)),
        round_bounds=bool(rope.get("truncate", True)),
    )


def _amplitude(rope: dict[str, Any], factor: float) -> float | None:
    amplitude, over, under = rope.get("attention_factor"), rope.get("mscale"), rope.get("mscale_all_dim")
    if amplitude is not None or not over or not under or factor <= 1:
        return None if amplitude is None else float(amplitude)
    grown = math.log(factor) / 10
    return float((over * grown + 1) / (under * grown + 1))


def _written(options: Any) -> dict[str, Any]:
    """Their `rope_parameters` for our options."""
    scaling: RotaryScaling | None = options.rotary_scaling
    rope: dict[str, Any] = {"rope_theta": options.rotary_base, "rope_type": "default"}
    if scaling is None:
        return rope
    rope.update(rope_type=scaling.kind, factor=scaling.factor)
    if scaling.kind == "linear":
        return rope
    rope["original_max_position_embeddings"] = scaling.original_length
    if scaling.kind == "llama3":
        return {**rope, "low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
    rope.update(beta_slow=scaling.low, beta_fast=scaling.high)
    if scaling.amplitude is not None:
        rope["attention_factor"] = scaling.amplitude
    return rope if scaling.round_bounds else {**rope, "truncate": False}


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    rope = _rope(given)
    padding = options["padding"]
    return {
        **options,
        "rotary_base": float(rope["rope_theta"]),
        "rotary_scaling": _scaling(rope, options["max_length"]),
        "output_bias": options["query_bias"],
        "padding": padding if padding is not None and padding >= 0 else None,  # -1 in the first files: none
    }


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    into, out = (options.bias if bias is None else bias for bias in (options.query_bias, options.output_bias))
    if into != out:
        raise Unsupported(
            f"llama's attention has all its biases or none, and this model has {into} before, {out} after"
        )
    rope = _written(options)
    # The old names as well: other readers than transformers 5 look for them.
    old = {key: value for key, value in rope.items() if key != "rope_theta"}
    scaling = None if rope["rope_type"] == "default" else old
    return {
        **record,
        "attention_bias": into,
        "rope_parameters": rope,
        "rope_theta": options.rotary_base,
        "rope_scaling": scaling,
    }


LLAMA = Family(
    name="llama",
    model="decoder",
    base="model.",
    bases={"LlamaForQuestionAnswering": "transformer."},
    fields=(
        Field("vocabulary", "vocab_size", 32000),
        Field("width", "hidden_size", 4096),
        Field("layers", "num_hidden_layers", 32),
        Field("heads", "num_attention_heads", 32),
        Field("kv_heads", "num_key_value_heads"),
        Field("head_dim", "head_dim"),
        Field("hidden", "intermediate_size", 11008),
        Field("activation", "hidden_act", "silu", GATES),
        Field("max_length", "max_position_embeddings", 2048),
        Field("eps", "rms_norm_eps", 1e-6),
        Field("bias", "mlp_bias", False),
        Field("query_bias", "attention_bias", False),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("init_std", "initializer_range", 0.02),
        Field("padding", "pad_token_id"),
        Field("tied", "tie_word_embeddings", False),
    ),
    fixed={
        "norm_position": "pre",
        "norm": "rms",
        "position": "rotary",
        "scale": False,
        "dropout": 0.0,
        "init": "normal",
    },
    only={"partial_rotary_factor": (1.0, None)},
    architectures={
        "LlamaForCausalLM": (),
        "LlamaModel": (),
        "LlamaForSequenceClassification": ("classify",),
        "LlamaForTokenClassification": ("tag",),
        "LlamaForQuestionAnswering": ("span",),
    },
    alone="LlamaModel",
    head=head,
    body=(
        rename("embedding.weight", "embed_tokens.weight"),
        *(rename(f"stack.blocks.*.mixer.project.{part}", f"layers.*.self_attn.{part}_proj") for part in "qkv"),
        rename("stack.blocks.*.mixer.out", "layers.*.self_attn.o_proj"),
        rename("stack.blocks.*.around_mixer.norm", "layers.*.input_layernorm"),
        rename("stack.blocks.*.feedforward.inner", ("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj")),
        rename("stack.blocks.*.feedforward.outer", "layers.*.mlp.down_proj"),
        rename("stack.blocks.*.around_feedforward.norm", "layers.*.post_attention_layernorm"),
        rename("stack.norm", "norm"),
    ),
    output=(rename("head.weight", "lm_head.weight"),),
    speakers=("LlamaForCausalLM",),
    heads={
        "classify": (rename("heads.classify.out", "score"),),
        "tag": (rename("heads.tag.out", "score"),),
        "span": (rename("heads.span.out", "qa_outputs"),),
    },
    ties={"lm_head.weight": "embed_tokens.weight"},
    untied=("lm_head.weight",),
    tied=False,
    ignored=(r".*rotary_emb\.inv_freq",),
    adjust=_adjust,
    restore=_restore,
)
