"""Llama (Touvron et al. 2023): a decoder with rotary positions, RMS norms, SwiGLU and grouped queries."""

from typing import Any

from longspan.hub.families.base import Config
from longspan.hub.families.llama_like import fields, llama_like, plain_rope, same_biases, write_biases

_adjust_rope, _restore_rope = plain_rope()


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    return same_biases(_adjust_rope(options, given))


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    return write_biases(_restore_rope(record, options), options, "llama")


LLAMA = llama_like(
    "llama",
    "Llama",
    bases={"LlamaForQuestionAnswering": "transformer."},
    fields=fields(),
    adjust=_adjust,
    restore=_restore,
)
