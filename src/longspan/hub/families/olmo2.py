"""OLMo 2 (Walsh et al. 2024): a Llama with norms of each sub-layer's output, and of all queries and keys of a token."""

from typing import Any

from longspan.hub.families.base import Config
from longspan.hub.families.llama_like import (
    EMBEDDING,
    GATED,
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
from longspan.hub.tensor_names import rename

_NORMS = (
    rename("stack.blocks.*.around_mixer.norm", "layers.*.post_attention_layernorm"),
    rename("stack.blocks.*.around_feedforward.norm", "layers.*.post_feedforward_layernorm"),
)
_adjust_rope, _restore_rope = plain_rope()


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    return same_biases(_adjust_rope(options, given))


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    return write_biases(_restore_rope(record, options), options, "olmo2")


OLMO2 = llama_like(
    "olmo2",
    "Olmo2",
    classes=("SequenceClassification",),
    fields=fields(("mlp_bias",), vocab_size=50304, rms_norm_eps=1e-5, pad_token_id=1),
    fixed={"bias": False, "norm_position": "output", "qk_norm": "all"},
    only={"mlp_bias": (False,), "clip_qkv": (None,)},
    body=(EMBEDDING, *QKV, *QK_NORMS, OUT, *GATED, *_NORMS, LAST_NORM),
    adjust=_adjust,
    restore=_restore,
)
