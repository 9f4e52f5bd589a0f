"""Mistral (Jiang et al. 2023): a Llama whose layers all read a sliding window, or none of them does."""

from typing import Any

from longspan.errors import Unsupported
from longspan.hub.families.base import Config
from longspan.hub.families.layer_types import FULL, SLIDING, read_attention, read_types, write_types
from longspan.hub.families.llama_like import fields, llama_like, plain_rope

_adjust_rope, _restore_rope = plain_rope()


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    window = given.get("sliding_window", 4096)
    types = [FULL if window is None else SLIDING] * options["layers"]
    if read_types(given, options["layers"]) not in (None, types):
        raise Unsupported(f"config.json: layer_types of a mistral are all {types[0]} with sliding_window {window}")
    return {**_adjust_rope(options, given), "attention": read_attention(types, window)}


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    types, window = write_types(options, "mistral")
    if len(set(types)) > 1:
        raise Unsupported("all layers of a mistral have a window or none has, and this model has both kinds")
    return {**_restore_rope(record, options), "sliding_window": window}


MISTRAL = llama_like(
    "mistral",
    "Mistral",
    fields=fields(
        ("mlp_bias", "attention_bias"),
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=131072,
    ),
    fixed={"bias": False},
    only={"attention_bias": (False,), "mlp_bias": (False,)},
    adjust=_adjust,
    restore=_restore,
)
