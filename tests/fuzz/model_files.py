"""Small valid files of models, in every format that is read."""

import json
import struct
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from longspan import config, hub
from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.hub import families
from longspan.hub.formats import gguf
from longspan.hub.pretrained import Pretrained
from longspan.manifest import MANIFEST
from longspan.models import build, registry

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sits", "##s", "on"]

SIZES = {"width": 8, "layers": 1, "heads": 2, "hidden": 12, "max_length": 16}

GENERATION = {
    "max_new_tokens": 5,
    "eos_token_id": [2, 3],
    "num_beams": 2,
    "length_penalty": 1.0,
    "early_stopping": True,
    "forced_bos_token_id": 1,
    "no_repeat_ngram_size": 3,
    "min_length": 2,
}
HF = {
    "bert": {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "vocab_size": 12,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
        "id2label": {"0": "no", "1": "yes", "2": "perhaps"},
    },
    "albert": {
        "model_type": "albert",
        "architectures": ["AlbertForMaskedLM"],
        "vocab_size": 12,
        "embedding_size": 4,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
    },
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 12,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 4,
        },
    },
    "longformer": {
        "model_type": "longformer",
        "architectures": ["LongformerForMaskedLM"],
        "vocab_size": 12,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 18,
        "attention_window": [4],
    },
    "big_bird": {
        "model_type": "big_bird",
        "architectures": ["BigBirdForMaskedLM"],
        "vocab_size": 12,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 64,
        "block_size": 4,
    },
    "bart": {
        "model_type": "bart",
        "architectures": ["BartForConditionalGeneration"],
        "vocab_size": 12,
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 12,
        "decoder_ffn_dim": 12,
        "max_position_embeddings": 16,
    },
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "image_size": 8,
        "patch_size": 4,
        "num_channels": 1,
    },
}


def theirs(folder: Path, name: str = "bert") -> Path:
    """A folder as Hugging Face writes it, with everything beside the model that is read."""

    record = HF[name]
    family = families.find(name, name)
    cls = registry.find(family.model)
    torch.manual_seed(0)
    model = cls(config.make(cls.Options, family.options(record), name))
    hub.save(Pretrained(model, name, dict(record)), folder)
    if name == "vit":
        return folder
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "model_max_length": 16}))
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"unk_token": "[UNK]", "cls_token": {"content": "[CLS]"}})
    )
    (folder / "added_tokens.json").write_text(json.dumps({"dog": 10, "cow": 11}))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "type": "sentence_transformers.models.Pooling"}]))
    return folder


def sharded(folder: Path) -> None:
    theirs(folder)
    model = hub.load(folder)
    hub.save(model, folder, shard_bytes=1500)


def own(folder: Path) -> None:
    """A folder of ours without its checksums, which would refuse every change before the reader sees it."""
    own_with_checksums(folder)
    (folder / MANIFEST).unlink()


def own_with_checksums(folder: Path) -> None:
    torch.manual_seed(0)
    build("decoder", vocabulary=300, **SIZES, position="learned").save(folder)
    learn(TokenizerOptions(kind="bpe", size=300, frequency=1), ["the cat sits on the mat"]).save(folder)


def universal(folder: Path) -> None:
    torch.manual_seed(0)
    build("transformer", vocabulary=20, width=8, layers=1, heads=2, hidden=12).save(folder)
    (folder / MANIFEST).unlink()


def llama_gguf(folder: Path, kind: str = "llama") -> None:
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    theirs(folder / "theirs", "llama")
    model = hub.load(folder / "theirs", tokenizer=False)
    tokens = ["<unk>", "<s>", "</s>", "▁", "t", "h", "e", "th", "▁the", "c", "a", "at"]
    said: dict[str, Any] = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[1] * 9],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }
    if kind == "llama":
        said["tokenizer.ggml.scores"] = [-float(number) for number in range(12)]
    else:
        said |= {"tokenizer.ggml.merges": ["t h", "a t"], "tokenizer.ggml.pre": "llama-bpe"}
        said["tokenizer.ggml.tokens"] = ["<unk>", "<s>", "</s>", "Ġ", "t", "h", "e", "th", "at", "c", "a", "x"]
    gguf.write(model, folder / "model.gguf", tokenizer=said)


def stories(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    width, hidden, layers, heads, kv_heads, vocabulary, longest = sizes = (8, 12, 1, 2, 1, 262, 16)
    narrow = width // heads * kv_heads
    layer = 2 * width + 2 * width * width + 2 * narrow * width + 3 * hidden * width
    numbers = np.zeros(vocabulary * width + layers * layer + width + longest * (width // heads), np.float32)
    (folder / "model.bin").write_bytes(struct.pack("<7i", *sizes) + numbers.tobytes())
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256)), " ", "t", "th"]
    rows = [struct.pack("<fi", -float(at), len(piece.encode())) + piece.encode() for at, piece in enumerate(pieces)]
    (folder / "tokenizer.bin").write_bytes(struct.pack("<i", 12) + b"".join(rows))


def pickled(folder: Path) -> None:
    theirs(folder)

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def old_pickled(folder: Path) -> None:
    theirs(folder)

    held = load_file(folder / "model.safetensors")
    torch.save(held, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / "model.safetensors").unlink()


def fairseq(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    start = "decoder.sentence_encoder."
    shapes = {"embed_tokens.weight": (12, 8), "embed_positions.weight": (18, 8)}
    parts = {"self_attn.in_proj": (24, 8), "self_attn.out_proj": (8, 8), "fc1": (12, 8), "fc2": (8, 12)}
    for name, shape in parts.items():
        joint = "_" if name.endswith("in_proj") else "."
        shapes |= {f"layers.0.{name}{joint}weight": shape, f"layers.0.{name}{joint}bias": shape[:1]}
    for name in ("emb_layer_norm", "layers.0.self_attn_layer_norm", "layers.0.final_layer_norm"):
        shapes |= {f"{name}.weight": (8,), f"{name}.bias": (8,)}
    held = {start + name: torch.zeros(shape) for name, shape in shapes.items()}
    ends = {"weight": (12, 8), "bias": (12,), "dense.weight": (8, 8), "dense.bias": (8,)}
    ends |= {"layer_norm.weight": (8,), "layer_norm.bias": (8,)}
    held |= {f"decoder.lm_head.{name}": torch.zeros(shape) for name, shape in ends.items()}
    arguments = Namespace(
        encoder_layers=1, encoder_attention_heads=2, encoder_ffn_embed_dim=12, activation_fn="gelu", arch="roberta_base"
    )
    torch.save({"args": arguments, "model": held}, folder / "model.pt")
    (folder / "dict.txt").write_text("".join(f"{at} {at}\n" for at in range(7)))
