"""Models of karpathy's llama2.c: a `.bin` of seven numbers and float32 weights, and a `tokenizer.bin` beside it.

Rotary pairs of queries and keys are adjacent. A negative vocabulary size means that the output layer is not tied to the
embedding. The two rotary tables at the end are redundant.
"""

import math
import struct
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor

from longspan.data.tokenizers.sentencepiece import LONGEST, MOST
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.formats.gguf_tokenizer import SPACE, from_pieces
from longspan.hub.formats.rotary_order import to_halves
from longspan.parsing import check_size, refusing

HEADER = struct.Struct("<7i")
LATER = 0x616B3432  # magic number of later versions
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")
SPECIAL = ("<unk>", "<s>", "</s>")


def read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The equivalent of config.json, and the tensors under Hugging Face's names."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(HEADER.size)
    if header.startswith(PICKLES):
        raise InvalidInput(f"{path} is a pickle, which can run code and is not read here; this is for llama2.c's .bin")
    if len(header) < HEADER.size:
        raise InvalidInput(f"{path} is no model of llama2.c: it has {size} bytes")
    width, hidden, layers, heads, kv_heads, vocabulary, longest = sizes = HEADER.unpack(header)
    if width == LATER:
        raise Unsupported(f"{path} is of llama2.c's version {hidden}; read is the first one: `export.py --version 0`")
    positive = min(width, hidden, layers, heads, kv_heads, longest, abs(vocabulary)) > 0
    if not positive or width % (2 * heads) or heads % kv_heads:
        raise InvalidInput(f"{path} is no model of llama2.c: its sizes are {sizes}")
    record = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": abs(vocabulary),
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": longest,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": vocabulary > 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return record, _tensors(path, size, record)


def _tensors(path: Path, size: int, record: dict[str, Any]) -> dict[str, Tensor]:
    width, hidden, layers = record["hidden_size"], record["intermediate_size"], record["num_hidden_layers"]
    heads, kv_heads = record["num_attention_heads"], record["num_key_value_heads"]
    head_dim = width // heads
    turns = (record["max_position_embeddings"], head_dim // 2)
    # In the order of the file; a name with a star means one tensor in each layer.
    layout: list[tuple[str, tuple[int, ...]]] = [
        ("model.embed_tokens.weight", (record["vocab_size"], width)),
        ("model.layers.*.input_layernorm.weight", (width,)),
        ("model.layers.*.self_attn.q_proj.weight", (width, width)),
        ("model.layers.*.self_attn.k_proj.weight", (kv_heads * head_dim, width)),
        ("model.layers.*.self_attn.v_proj.weight", (kv_heads * head_dim, width)),
        ("model.layers.*.self_attn.o_proj.weight", (width, width)),
        ("model.layers.*.post_attention_layernorm.weight", (width,)),
        ("model.layers.*.mlp.gate_proj.weight", (hidden, width)),
        ("model.layers.*.mlp.down_proj.weight", (width, hidden)),
        ("model.layers.*.mlp.up_proj.weight", (hidden, width)),
        ("model.norm.weight", (width,)),
        ("cosines", turns),
        ("sines", turns),
    ]
    if not record["tie_word_embeddings"]:
        layout.append(("lm_head.weight", (record["vocab_size"], width)))
    shapes = [(layers, *shape) if "*" in name else shape for name, shape in layout]
    expected = HEADER.size + 4 * sum(math.prod(shape) for shape in shapes)
    if size != expected:
        raise InvalidInput(f"{path} has {size} bytes, and a model of llama2.c with its sizes {expected}")
    numbers = torch.from_file(str(path), shared=False, size=size // 4, dtype=torch.float32)
    tensors, offset = {}, HEADER.size // 4
    sizes = [torch.Size(shape) for shape in shapes]
    for (name, _), shape_of_all in zip(layout, sizes):
        tensor = numbers[offset : offset + shape_of_all.numel()].view(shape_of_all)
        rows = heads if ".q_proj." in name else kv_heads if ".k_proj." in name else None
        for layer, layer_tensor in enumerate(tensor if "*" in name else [tensor]):
            tensors[name.replace("*", str(layer))] = layer_tensor if rows is None else to_halves(layer_tensor, rows)
        offset += shape_of_all.numel()
    del tensors["cosines"], tensors["sines"]
    return tensors


def tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer of a `tokenizer.bin`: the longest piece, then each one's score, length and bytes."""
    path = Path(path)
    check_size(path, MOST)
    data, at = path.read_bytes(), 4
    pieces: list[str] = []
    scores: list[float] = []
    while at < len(data):
        if at + 8 > len(data):
            raise InvalidInput(f"{path} is cut off in piece {len(pieces)}")
        score, length = struct.unpack_from("<fi", data, at)
        at += 8 + length
        if length > 4 * LONGEST or not math.isfinite(score):
            raise InvalidInput(
                f"{path}: piece {len(pieces)} has {length:,} bytes and the score {score}; "
                f"it can have {4 * LONGEST:,}, and a finite score"
            )
        if length < 0 or at > len(data):
            raise InvalidInput(f"{path} is no tokenizer of llama2.c, or is cut off in piece {len(pieces)}")
        pieces.append(data[at - length : at].decode("utf-8", errors="replace").replace(" ", SPACE))
        scores.append(score)
    if len(pieces) < 259:
        raise InvalidInput(f"{path} has {len(pieces)} pieces; three special ones and 256 bytes come first")
    pieces[:3] = SPECIAL  # the file has line breaks around them
    with refusing(path):
        built = from_pieces(pieces, scores)
    built.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIAL])
    return built


__all__ = ["read", "tokenizer"]
