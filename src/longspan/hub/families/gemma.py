"""Gemma 2 (Riviere et al. 2024) and the text part of Gemma 3 (Kamath et al. 2025).

Llamas with norms before and after each sub-layer, gains stored as differences from 1, embeddings times the root of the
width, a scale of scores of their own, and windows in most layers. Gemma 2 caps scores and logits softly. Gemma 3
normalises queries and keys instead, and layers with a window have their own rotary base.
"""

from collections.abc import Sequence
from typing import Any

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.families.base import Config, Field
from longspan.hub.families.layer_types import FULL, SLIDING, read_attention, read_types, write_types
from longspan.hub.families.llama_like import (
    EMBEDDING,
    GATED,
    GATES,
    LAST_NORM,
    OUT,
    QK_NORMS,
    QKV,
    fields,
    llama_like,
    plain_rope,
    same_biases,
    write_biases,
)
from longspan.hub.families.rope import complete, read_scaling, write_rope
from longspan.hub.tensor_names import rename
from longspan.models.attention_positions import RotaryLayer
from longspan.models.body import spread

_SCALAR = 256  # the default of query_pre_attn_scalar
_GLOBAL, _LOCAL = 1e6, 1e4  # Gemma 3's rotary bases
_NORMS = (
    rename("stack.blocks.*.around_mixer.norm", "layers.*.input_layernorm"),
    rename("stack.blocks.*.around_mixer.norm_output", "layers.*.post_attention_layernorm"),
    rename("stack.blocks.*.around_feedforward.norm", "layers.*.pre_feedforward_layernorm"),
    rename("stack.blocks.*.around_feedforward.norm_output", "layers.*.post_feedforward_layernorm"),
)
_BODY = (EMBEDDING, *QKV, OUT, *GATED, *_NORMS, LAST_NORM)
_FIXED = {"bias": False, "norm": "rms_offset", "norm_position": "both", "scale": True}
_ONLY = {"use_bidirectional_attention": (None, False), "mlp_bias": (False,)}
_adjust_rope, _restore_rope = plain_rope()


def _read_layers(options: dict[str, Any], given: Config, types: list[str], **more: Any) -> dict[str, Any]:
    """Options with the attention of each layer; a scale that is the usual one is left out."""
    scalar = given.get("query_pre_attn_scalar", _SCALAR)
    if not isinstance(scalar, int | float) or scalar <= 0:
        raise InvalidInput(f"config.json: query_pre_attn_scalar must be a number above 0, not {scalar!r}")
    scale = {} if scalar == options["head_dim"] else {"scale": float(scalar**-0.5)}
    attention = read_attention(types, given.get("sliding_window", 4096), **scale, **more)
    return same_biases({**options, "attention": attention})


def _write_layers(record: dict[str, Any], options: Any, family: str) -> tuple[dict[str, Any], Any]:
    """The keys of the layers, and the options of their attention, which all layers have in common."""
    types, window = write_types(options, family)
    shared = [setting.all_options for setting in spread(options.attention, options.layers, family)]
    first = shared[0]
    for other in shared[1:]:
        if (other.scale, other.softcap) != (first.scale, first.softcap):
            raise Unsupported(f"all layers of a {family} have one scale and one soft cap, and this model's differ")
    if first.scale is None:
        scalar: float = options.head_dim or options.width // options.heads
    else:
        near = round(first.scale**-2)
        scalar = near if near**-0.5 == first.scale else first.scale**-2
    record = {
        **write_biases(record, options, family),
        "layer_types": types,
        "sliding_window": 4096 if window is None else window,
        "query_pre_attn_scalar": scalar,
        "hidden_act": record["hidden_activation"],
    }
    return record, first


# Gemma 2


def _adjust2(options: dict[str, Any], given: Config) -> dict[str, Any]:
    layers = options["layers"]
    types = read_types(given, layers) or [FULL if layer % 2 else SLIDING for layer in range(layers)]
    cap = given.get("attn_logit_softcapping", 50.0)
    more = {} if cap is None else {"softcap": float(cap)}
    return _read_layers(_adjust_rope(options, given), given, types, **more)


def _restore2(record: dict[str, Any], options: Any) -> dict[str, Any]:
    record, shared = _write_layers(_restore_rope(record, options), options, "gemma2")
    return {**record, "attn_logit_softcapping": shared.softcap}


# Gemma 3


def _ropes(given: Config) -> dict[str, dict[str, Any]]:
    """The rotary settings of each kind of layer, old or new."""
    new = given.get("rope_parameters") or {}
    nested = bool({FULL, SLIDING} & {*new})
    whole = dict((new.get(FULL) if nested else new) or {}) | dict(given.get("rope_scaling") or {})
    near = dict((new.get(SLIDING) if nested else None) or {})
    whole.setdefault("rope_theta", given.get("rope_theta", _GLOBAL))
    near.setdefault("rope_theta", given.get("rope_local_base_freq", _LOCAL))
    return {FULL: complete(whole, given), SLIDING: complete(near, given)}


def _adjust3(options: dict[str, Any], given: Config) -> dict[str, Any]:
    layers, pattern = options["layers"], given.get("sliding_window_pattern", 6)
    if not isinstance(pattern, int) or pattern < 1:
        raise InvalidInput(f"config.json: sliding_window_pattern must be a number of layers, not {pattern!r}")
    types = read_types(given, layers)
    types = types or [SLIDING if (layer + 1) % pattern else FULL for layer in range(layers)]
    rotary = {
        kind: RotaryLayer(base=float(rope["rope_theta"]), scaling=read_scaling(rope, options["max_length"]))
        for kind, rope in _ropes(given).items()
    }
    options = {
        **options,
        "rotary_base": rotary[FULL].base,
        "rotary_layers": tuple(rotary[kind] for kind in types),
    }
    return _read_layers(options, given, types)


def _restore3(record: dict[str, Any], options: Any) -> dict[str, Any]:
    record, _ = _write_layers(record, options, "gemma3_text")
    ropes = _written_ropes(options, record["layer_types"])
    whole = {key: value for key, value in ropes[FULL].items() if key != "rope_theta"}
    return {
        **record,
        "rope_parameters": ropes,
        "rope_theta": ropes[FULL]["rope_theta"],
        "rope_local_base_freq": ropes[SLIDING]["rope_theta"],
        "rope_scaling": None if whole["rope_type"] == "default" else whole,
    }


def _written_ropes(options: Any, types: Sequence[str]) -> dict[str, dict[str, Any]]:
    given = options.rotary_layers or (RotaryLayer(scaling=options.rotary_scaling),)
    ropes = {FULL: write_rope(_GLOBAL, None), SLIDING: write_rope(_LOCAL, None)}
    known: dict[str, dict[str, Any]] = {}
    for index, kind in enumerate(types):
        layer = given[index % len(given)]
        if not layer.rotate:
            raise Unsupported("every layer of a gemma3_text rotates, and this model has layers that do not")
        rope = write_rope(options.rotary_base if layer.base is None else layer.base, layer.scaling)
        if known.setdefault(kind, rope) != rope:
            raise Unsupported(f"all layers of a gemma3_text with {kind} rotate alike, and this model's do not")
    return {**ropes, **known}


_FIELDS = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
_GATE = Field("activation", "hidden_activation", "gelu_pytorch_tanh", GATES)
GEMMA2 = llama_like(
    "gemma2",
    "Gemma2",
    classes=("SequenceClassification", "TokenClassification"),
    fields=(
        *fields(("hidden_act", "mlp_bias"), vocab_size=256000, max_position_embeddings=8192, **_FIELDS),
        _GATE,
        Field("logit_cap", "final_logit_softcapping", 30.0),
    ),
    fixed=_FIXED,
    only=_ONLY,
    body=_BODY,
    tied=True,
    adjust=_adjust2,
    restore=_restore2,
)
GEMMA3 = llama_like(
    "gemma3_text",
    "Gemma3",
    alone="Gemma3TextModel",
    classes=("SequenceClassification",),
    named={"SequenceClassification": "Gemma3TextForSequenceClassification"},
    fields=(
        *fields(("hidden_act", "mlp_bias"), vocab_size=262208, max_position_embeddings=131072, **_FIELDS),
        _GATE,
        Field("logit_cap", "final_logit_softcapping"),
    ),
    fixed={**_FIXED, "qk_norm": "head"},
    only={**_ONLY, "attn_logit_softcapping": (None,)},
    body=(*_BODY, *QK_NORMS),
    tied=True,
    adjust=_adjust3,
    restore=_restore3,
)
