"""Tiny random models of transformers, one of each family that uses the interface, built once."""

from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor

from longspan.hub import register

LENGTH, VOCABULARY, WINDOW = 12, 61, 4
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
HEADS_OF_8 = {**GROUPED, "head_dim": 8}
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
ENCODER_DECODER = {
    "encoder_layers": 1,
    "decoder_layers": 2,
    "d_model": 32,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
}

# name: (class, configuration's class, options)
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", SMALL),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", SMALL),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": VOCABULARY, "dim": 32, "hidden_dim": 40, "n_layers": 2, "n_heads": 4},
    ),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", {**SMALL, "embedding_size": 32}),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**SMALL, "local_attention": 2 * WINDOW, "global_attn_every_n_layers": 2},
    ),
    "bert_decoder": ("BertLMHeadModel", "BertConfig", {**SMALL, "is_decoder": True}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": WINDOW}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**GROUPED, **SLIDING, "use_sliding_window": True}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", HEADS_OF_8),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**HEADS_OF_8, **SLIDING, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**HEADS_OF_8, **SLIDING, "query_pre_attn_scalar": 16}),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**HEADS_OF_8, **SLIDING, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**SMALL, "ffn_dim": 40, "word_embed_proj_dim": 32},
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**GROUPED, "sliding_window": WINDOW}),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {
            "vocab_size": VOCABULARY,
            **ENCODER_DECODER,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        },
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 6,
            "d_ff": 40,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {
            **{
                key: value
                for key, value in SMALL.items()
                if ("size" in key and key != "vocab_size") or key.startswith("num")
            },
            "image_size": 8,
            "patch_size": 2,
        },
    ),
}
ENCODERS = ["bert", "roberta", "distilbert", "electra", "modernbert"]
DECODERS = [name for name, (kind, _, _) in FAMILIES.items() if "LM" in kind and "Masked" not in kind]
ENCODER_DECODERS = ["bart", "t5"]


@cache
def family(name: str) -> Any:
    """The model of a family, in evaluation mode."""
    register()
    kind, config, options = FAMILIES[name]
    torch.manual_seed(1)
    model = getattr(transformers, kind)(getattr(transformers, config)(**options))
    with torch.no_grad():  # sharper attention than that of a new model, so that a wrong mask shows
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in parameter_name and name != "t5":  # T5's scores are not scaled
                parameter.mul_(4.0)
            elif parameter_name.endswith("sinks"):
                parameter.normal_()
    return model.eval()


def texts(padding: str = "none", rows: int = 2) -> tuple[Tensor, Tensor]:
    """Ids and mask: the first row has 4 tokens of padding on a side."""
    ids = torch.randint(3, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    if padding != "none":
        mask[0, slice(0, 4) if padding == "left" else slice(-4, None)] = 0
    return ids * mask, mask


@torch.no_grad()
def run(model: Any, implementation: str, *args: Any, **given: Any) -> Any:
    """The outputs with an attention implementation."""
    model.set_attn_implementation(implementation)
    return model(*args, **given)


def largest(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()
