"""Qwen2 (Yang et al. 2024) and Qwen3 (Yang et al. 2025): Llamas with windows in the upper layers, if they use them.

Qwen2 has biases on queries, keys and values only. Qwen3 has none, and normalises the queries and keys of each head.
"""

from typing import Any

from longspan.hub.families.base import Config
from longspan.hub.families.layer_types import FULL, SLIDING, read_attention, read_types, write_types
from longspan.hub.families.llama_like import (
    BODY,
    QK_NORMS,
    fields,
    llama_like,
    plain_rope,
    same_biases,
    write_biases,
)

_adjust_rope, _restore_rope = plain_rope()
_UPPER = 28  # the default of max_window_layers: layers from the bottom without a window


def read_layers(options: dict[str, Any], given: Config) -> dict[str, Any]:
    """Options with the attention of each layer: `layer_types`, or windows above `max_window_layers`."""
    layers = options["layers"]
    window = given.get("sliding_window", 4096) if given.get("use_sliding_window", False) else None
    types = read_types(given, layers)
    if types is None:
        first = given.get("max_window_layers", _UPPER)
        types = [SLIDING if window is not None and layer >= first else FULL for layer in range(layers)]
    return {**options, "attention": read_attention(types, window)}


def write_layers(record: dict[str, Any], options: Any, family: str) -> dict[str, Any]:
    """The keys of the layers' windows; `max_window_layers` says the same for readers of old files, if it can."""
    types, window = write_types(options, family)
    below = types.index(SLIDING) if SLIDING in types else len(types)
    above = SLIDING in types and FULL not in types[below:]
    return {
        **record,
        "layer_types": types,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": below if above else len(types),
    }


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    return read_layers(_adjust_rope(options, given), given)


def _adjust3(options: dict[str, Any], given: Config) -> dict[str, Any]:
    return same_biases(_adjust(options, given))


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    return write_layers(_restore_rope(record, options), options, "qwen2")


def _restore3(record: dict[str, Any], options: Any) -> dict[str, Any]:
    return write_biases(write_layers(_restore_rope(record, options), options, "qwen3"), options, "qwen3")


_SIZES = {
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
QWEN2 = llama_like(
    "qwen2",
    "Qwen2",
    bases={"Qwen2ForQuestionAnswering": "transformer."},
    fields=fields(("mlp_bias", "attention_bias"), **_SIZES),
    fixed={"bias": False, "query_bias": True, "output_bias": False},
    only={"attention_bias": (True,), "mlp_bias": (False,)},
    adjust=_adjust,
    restore=_restore,
)
QWEN3 = llama_like(
    "qwen3",
    "Qwen3",
    bases={"Qwen3ForQuestionAnswering": "transformer."},
    fields=fields(("mlp_bias",), head_dim=128, **_SIZES),
    fixed={"bias": False, "qk_norm": "head"},
    only={"mlp_bias": (False,)},
    body=(*BODY, *QK_NORMS),
    adjust=_adjust3,
    restore=_restore3,
)
