"""The architectures of GGUF files that are read and written: tensor names, and metadata beyond what all have.

What llama.cpp fixes in its code, a file does not say: Gemma's scale of scores by the number of layers, Gemma 3's
pattern of windows, SmolLM3's layers without rotation, the gate of gpt-oss. Those are here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from longspan.errors import Unsupported, nearest
from longspan.hub.formats.gguf_file import GgufFile

FULL = "full_attention"
Number = Callable[..., Any]  # reads a number above 0 of the metadata by its key, without the architecture's prefix

# Hugging Face's names and GGUF's; `*` is the number of a layer.
_EMBEDDINGS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_ATTENTION = {
    f"model.layers.*.self_attn.{theirs}_proj": f"blk.*.attn_{name}"
    for theirs, name in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))
}
_GATED = {f"model.layers.*.mlp.{name}_proj": f"blk.*.ffn_{name}" for name in ("gate", "up", "down")}
_PRE_NORMS = {
    "model.layers.*.input_layernorm": "blk.*.attn_norm",
    "model.layers.*.post_attention_layernorm": "blk.*.ffn_norm",
}
_QK_NORMS = {f"model.layers.*.self_attn.{name}_norm": f"blk.*.attn_{name}_norm" for name in "qk"}
_GEMMA_NORMS = {
    "model.layers.*.input_layernorm": "blk.*.attn_norm",
    "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
    "model.layers.*.pre_feedforward_layernorm": "blk.*.ffn_norm",
    "model.layers.*.post_feedforward_layernorm": "blk.*.post_ffw_norm",
}
_LLAMA = {**_EMBEDDINGS, **_ATTENTION, **_GATED, **_PRE_NORMS}


@dataclass(frozen=True)
class Architecture:
    """One value of `general.architecture`."""

    name: str
    family: str  # Hugging Face's model_type
    speaker: str  # the class there
    names: Mapping[str, str]
    read: Callable[[GgufFile, Number], dict[str, Any]]  # further entries of config.json
    write: Callable[[Mapping[str, Any]], dict[str, Any]]  # further metadata, from the entries of config.json
    paired: bool = False  # rotary pairs of queries and keys are adjacent
    offset: bool = False  # gains of norms are stored with 1 added
    partial: bool = False  # a part of each head's features may be rotated
    rms: bool = True  # norms are RMS norms, not layer norms
    alternates: str | None = None  # a matrix of queries, keys and values that alternate by head there, and not here


def _biased(file: GgufFile) -> dict[str, Any]:
    return {"attention_bias": "blk.0.attn_q.bias" in file}


def _nothing(record: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _llama(file: GgufFile, number: Number) -> dict[str, Any]:
    return {**_biased(file), "mlp_bias": "blk.0.ffn_gate.bias" in file}


def _gemma_scalar(number: Number, largest: int) -> int:
    """`query_pre_attn_scalar`: the width of a head, except in the model of 27 billion, which has `largest` layers."""
    width, heads = number("embedding_length"), number("attention.head_count")
    scalar = (
        width // heads if number("block_count") == largest else number("attention.key_length", default=width // heads)
    )
    return int(scalar)


def _gemma2(file: GgufFile, number: Number) -> dict[str, Any]:
    return {
        "query_pre_attn_scalar": _gemma_scalar(number, 46),
        "sliding_window": number("attention.sliding_window", default=4096),
        "attn_logit_softcapping": number("attn_logit_softcapping", int | float, 50.0),
        "final_logit_softcapping": number("final_logit_softcapping", int | float, 30.0),
    }


def _write_gemma2(record: Mapping[str, Any]) -> dict[str, Any]:
    caps = {key: record[key] for key in ("attn_logit_softcapping", "final_logit_softcapping")}
    if None in caps.values():
        raise Unsupported("a gemma2 in a GGUF file caps its scores and its logits, and this model does not")
    return {"attention.sliding_window": record["sliding_window"], **{key: float(cap) for key, cap in caps.items()}}


def _gemma3(file: GgufFile, number: Number) -> dict[str, Any]:
    windows = "gemma3.attention.sliding_window" in file.metadata
    entries: dict[str, Any] = {
        "query_pre_attn_scalar": _gemma_scalar(number, 62),
        "rope_local_base_freq": number("rope.freq_base_swa", int | float, 10000.0),
        "sliding_window_pattern": number("attention.sliding_window_pattern", default=6),
    }
    if "gemma3.final_logit_softcapping" in file.metadata:
        entries["final_logit_softcapping"] = number("final_logit_softcapping", int | float)
    if not windows:
        return {**entries, "layer_types": [FULL] * number("block_count")}
    return {**entries, "sliding_window": number("attention.sliding_window")}


def _write_gemma3(record: Mapping[str, Any]) -> dict[str, Any]:
    entries: dict[str, Any] = {"rope.freq_base_swa": float(record["rope_local_base_freq"])}
    types = record["layer_types"]
    if FULL not in types or types != [FULL] * len(types):
        pattern = types.index(FULL) + 1 if FULL in types else len(types) + 1
        entries |= {"attention.sliding_window": record["sliding_window"], "attention.sliding_window_pattern": pattern}
    if record.get("final_logit_softcapping") is not None:
        entries["final_logit_softcapping"] = float(record["final_logit_softcapping"])
    return entries


def _phi3(file: GgufFile, number: Number) -> dict[str, Any]:
    entries = {"sliding_window": file.metadata.get("phi3.attention.sliding_window") or None}
    if "phi3.rope.scaling.original_context_length" in file.metadata:
        entries["original_max_position_embeddings"] = number("rope.scaling.original_context_length")
    return entries


def _write_phi3(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention.sliding_window": record["sliding_window"] or 0}


def _olmo2(file: GgufFile, number: Number) -> dict[str, Any]:
    if "olmo2.attention.sliding_window" in file.metadata:
        raise Unsupported(f"{file.path} has olmo2.attention.sliding_window, as OLMo 3 has; OLMo 2 has no windows")
    return _biased(file)


def _gpt_oss(file: GgufFile, number: Number) -> dict[str, Any]:
    return {
        **_biased(file),
        "num_local_experts": number("expert_count"),
        "num_experts_per_tok": number("expert_used_count"),
        "intermediate_size": number("expert_feed_forward_length"),
        "sliding_window": number("attention.sliding_window"),
    }


def _write_gpt_oss(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "expert_count": record["num_local_experts"],
        "expert_used_count": record["num_experts_per_tok"],
        "expert_feed_forward_length": record["intermediate_size"],
        "attention.sliding_window": record["sliding_window"],
    }


def _gpt_neox(file: GgufFile, number: Number) -> dict[str, Any]:
    width, heads = number("embedding_length"), number("attention.head_count")
    rotated, size = number("rope.dimension_count", default=width // heads), max(1, width // heads)
    return {
        "attention_bias": "blk.0.attn_qkv.bias" in file,
        "partial_rotary_factor": min(1.0, (rotated + 0.5) / size),
        "use_parallel_residual": bool(file.metadata.get("gptneox.use_parallel_residual", True)),
    }


def _write_gpt_neox(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"use_parallel_residual": bool(record["use_parallel_residual"])}


_GPT_NEOX_NAMES = {
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "gpt_neox.layers.*.input_layernorm": "blk.*.attn_norm",
    "gpt_neox.layers.*.attention.query_key_value": "blk.*.attn_qkv",
    "gpt_neox.layers.*.attention.dense": "blk.*.attn_output",
    "gpt_neox.layers.*.post_attention_layernorm": "blk.*.ffn_norm",
    "gpt_neox.layers.*.mlp.dense_h_to_4h": "blk.*.ffn_up",
    "gpt_neox.layers.*.mlp.dense_4h_to_h": "blk.*.ffn_down",
}
_PHI3_NAMES = {
    "model.layers.*.self_attn.qkv_proj": "blk.*.attn_qkv",
    "model.layers.*.self_attn.o_proj": "blk.*.attn_output",
    "model.layers.*.mlp.gate_up_proj": "blk.*.ffn_up",
    "model.layers.*.mlp.down_proj": "blk.*.ffn_down",
}
_OLMO2_NORMS = {
    "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
    "model.layers.*.post_feedforward_layernorm": "blk.*.post_ffw_norm",
}
_GPT_OSS_NAMES = {
    "model.layers.*.input_layernorm": "blk.*.attn_norm",
    "model.layers.*.post_attention_layernorm": "blk.*.post_attention_norm",
    "model.layers.*.mlp.router": "blk.*.ffn_gate_inp",
}
_KNOWN = (
    Architecture("llama", "llama", "LlamaForCausalLM", _LLAMA, _llama, _nothing, paired=True),
    Architecture("qwen2", "qwen2", "Qwen2ForCausalLM", _LLAMA, lambda file, number: {}, _nothing),
    Architecture(
        "qwen3", "qwen3", "Qwen3ForCausalLM", {**_LLAMA, **_QK_NORMS}, lambda file, number: _biased(file), _nothing
    ),
    Architecture(
        "gemma2",
        "gemma2",
        "Gemma2ForCausalLM",
        {**_EMBEDDINGS, **_ATTENTION, **_GATED, **_GEMMA_NORMS},
        _gemma2,
        _write_gemma2,
        offset=True,
    ),
    Architecture(
        "gemma3",
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_EMBEDDINGS, **_ATTENTION, **_GATED, **_GEMMA_NORMS, **_QK_NORMS},
        _gemma3,
        _write_gemma3,
        offset=True,
    ),
    Architecture(
        "phi3",
        "phi3",
        "Phi3ForCausalLM",
        {**_EMBEDDINGS, **_PHI3_NAMES, **_PRE_NORMS},
        _phi3,
        _write_phi3,
        partial=True,
    ),
    Architecture("smollm3", "smollm3", "SmolLM3ForCausalLM", _LLAMA, _llama, _nothing, paired=True),
    Architecture(
        "olmo2",
        "olmo2",
        "Olmo2ForCausalLM",
        {**_EMBEDDINGS, **_ATTENTION, **_GATED, **_QK_NORMS, **_OLMO2_NORMS},
        _olmo2,
        _nothing,
    ),
    Architecture(
        "gpt-oss",
        "gpt_oss",
        "GptOssForCausalLM",
        {**_EMBEDDINGS, **_ATTENTION, **_GPT_OSS_NAMES},
        _gpt_oss,
        _write_gpt_oss,
    ),
    Architecture(
        "gptneox",
        "gpt_neox",
        "GPTNeoXForCausalLM",
        _GPT_NEOX_NAMES,
        _gpt_neox,
        _write_gpt_neox,
        partial=True,
        rms=False,
        alternates="query_key_value",
    ),
)
ARCHITECTURES = {architecture.name: architecture for architecture in _KNOWN}


def of_file(file: GgufFile) -> Architecture:
    """The architecture of a file."""
    kind = file.metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
        near = nearest(str(kind), ARCHITECTURES)
        hint = "" if near is None else f"; the nearest is {near!r}"
        raise Unsupported(f"{file.path} is a {kind!r}; GGUF files of {', '.join(ARCHITECTURES)} are read{hint}")
    return ARCHITECTURES[kind]


def of_family(family: str | None) -> Architecture:
    """The architecture that a family is written as; a Mistral is written as a Llama, which it is without windows."""
    for architecture in _KNOWN:
        if architecture.family == family:
            return architecture
    return ARCHITECTURES["llama"]


__all__ = ["ARCHITECTURES", "Architecture", "of_family", "of_file"]
