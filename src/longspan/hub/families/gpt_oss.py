"""gpt-oss (OpenAI 2025): a Llama with experts, a learned sink in every softmax, and windows in every other layer.

The released files pack their experts in four bits (`quantization_config`), which is refused: convert them first.
"""

from typing import Any

from longspan.errors import Unsupported
from longspan.hub.families.base import Config
from longspan.hub.families.layer_types import FULL, SLIDING, read_attention, read_types, write_types
from longspan.hub.families.llama_like import (
    EMBEDDING,
    LAST_NORM,
    OUT,
    PRE_NORMS,
    QKV,
    fields,
    llama_like,
    plain_rope,
    same_biases,
    write_biases,
)
from longspan.hub.tensor_names import rename
from longspan.models.body import spread
from longspan.nn.experts import Experts

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_EXPERTS = (
    rename("stack.blocks.*.feedforward.router", "layers.*.mlp.router"),
    rename("stack.blocks.*.feedforward.gate_up", "layers.*.mlp.experts.gate_up_proj"),
    rename("stack.blocks.*.feedforward.gate_up_bias", "layers.*.mlp.experts.gate_up_proj_bias"),
    rename("stack.blocks.*.feedforward.down", "layers.*.mlp.experts.down_proj"),
    rename("stack.blocks.*.feedforward.down_bias", "layers.*.mlp.experts.down_proj_bias"),
)
_SINKS = rename("stack.blocks.*.mixer.mechanism.sink_logits", "layers.*.self_attn.sinks")
_adjust_rope, _restore_rope = plain_rope(150000.0)


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    if not given.get("rope_scaling") and not given.get("rope_parameters"):
        given = {**given, "rope_parameters": {**_ROPE, "rope_theta": given.get("rope_theta", 150000.0)}}
    layers = options["layers"]
    types = read_types(given, layers) or [FULL if layer % 2 else SLIDING for layer in range(layers)]
    experts = Experts(
        count=given.get("num_local_experts", given.get("num_experts", 128)),
        active=given.get("num_experts_per_tok", given.get("experts_per_token", 4)),
        slope=given.get("swiglu_alpha", 1.702),
        limit=given.get("swiglu_limit", 7.0),
    )
    attention = read_attention(types, given.get("sliding_window", 128), learned_sink=True)
    return {**same_biases(_adjust_rope(options, given)), "attention": attention, "experts": experts}


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    types, window = write_types(options, "gpt_oss")
    experts: Experts | None = options.experts
    if experts is None or experts.limit is None:
        raise Unsupported("a gpt_oss has experts with a limit on their gates, and this model has none")
    if not all(each.all_options.learned_sink for each in spread(options.attention, options.layers, "gpt_oss")):
        raise Unsupported("every layer of a gpt_oss has a learned sink, and this model has layers without one")
    return {
        **write_biases(_restore_rope(record, options), options, "gpt_oss"),
        "layer_types": types,
        "sliding_window": 128 if window is None else window,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.active,
        "swiglu_alpha": experts.slope,
        "swiglu_limit": experts.limit,
        "hidden_act": "silu",
    }


GPT_OSS = llama_like(
    "gpt_oss",
    "GptOss",
    classes=("SequenceClassification", "TokenClassification"),
    fields=fields(
        ("mlp_bias", "hidden_act"),
        vocab_size=201088,
        hidden_size=2880,
        num_hidden_layers=36,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=2880,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        attention_bias=True,
    ),
    fixed={"bias": True},
    only={"hidden_act": ("silu",)},
    body=(EMBEDDING, *QKV, _SINKS, OUT, *_EXPERTS, *PRE_NORMS, LAST_NORM),
    adjust=_adjust,
    restore=_restore,
)
