"""Convert fairseq's RoBERTa checkpoints to the configuration and tensors of a Hugging Face folder.

A fairseq checkpoint is a pickle of tensors and of the training arguments. torch's `weights_only` reader reads it, with
`argparse.Namespace` as the only other class that is allowed.
"""

import argparse
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longspan.data.files import read_text
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.formats.readers import Content, Format

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # come before the words of a dictionary, and <mask> after them
# fairseq's names of tensors in all its releases, and Hugging Face's.
NAMES = (
    (r"embed_tokens\.weight", "roberta.embeddings.word_embeddings.weight"),
    (r"embed_positions\.weight", "roberta.embeddings.position_embeddings.weight"),
    (r"(?:emb_layer_norm|layernorm_embedding)\.(weight|bias)", r"roberta.embeddings.LayerNorm.\1"),
    (r"layers\.(\d+)\.self_attn\.q_proj\.(weight|bias)", r"roberta.encoder.layer.\1.attention.self.query.\2"),
    (r"layers\.(\d+)\.self_attn\.k_proj\.(weight|bias)", r"roberta.encoder.layer.\1.attention.self.key.\2"),
    (r"layers\.(\d+)\.self_attn\.v_proj\.(weight|bias)", r"roberta.encoder.layer.\1.attention.self.value.\2"),
    (r"layers\.(\d+)\.self_attn\.out_proj\.(weight|bias)", r"roberta.encoder.layer.\1.attention.output.dense.\2"),
    (r"layers\.(\d+)\.self_attn_layer_norm\.(weight|bias)", r"roberta.encoder.layer.\1.attention.output.LayerNorm.\2"),
    (r"layers\.(\d+)\.fc1\.(weight|bias)", r"roberta.encoder.layer.\1.intermediate.dense.\2"),
    (r"layers\.(\d+)\.fc2\.(weight|bias)", r"roberta.encoder.layer.\1.output.dense.\2"),
    (r"layers\.(\d+)\.final_layer_norm\.(weight|bias)", r"roberta.encoder.layer.\1.output.LayerNorm.\2"),
    (r"lm_head\.weight", "lm_head.decoder.weight"),
    (r"lm_head\.bias", "lm_head.bias"),
    (r"lm_head\.dense\.(weight|bias)", r"lm_head.dense.\1"),
    (r"lm_head\.layer_norm\.(weight|bias)", r"lm_head.layer_norm.\1"),
)
IGNORED = r"version|.*_float_tensor"  # buffers without content


def read(path: Path | str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the tensors of a RoBERTa, as `config.json` and `model.safetensors` have them."""
    path = Path(path)
    saved = _unpickle(path)
    arguments = _arguments(saved, path)
    held = saved.get("model") if isinstance(saved, Mapping) else None
    if not isinstance(held, Mapping) or not all(isinstance(tensor, Tensor) for tensor in held.values()):
        raise InvalidInput(f"{path} is no checkpoint of fairseq: it has no 'model' of tensors")
    found: dict[str, Tensor] = {}
    for name, tensor in _apart(held).items():
        if not re.fullmatch(IGNORED, name):
            found[_renamed(name, path)] = tensor
    words = found.get("roberta.embeddings.word_embeddings.weight")
    places = found.get("roberta.embeddings.position_embeddings.weight")
    if words is None or places is None:
        raise InvalidInput(f"{path} has no tables of tokens and positions: it is no RoBERTa")
    # fairseq's model has no segments; Hugging Face's always has one, here of zeros.
    found["roberta.embeddings.token_type_embeddings.weight"] = words.new_zeros(1, words.shape[1])
    config = {
        "model_type": "roberta",
        "architectures": ["RobertaForMaskedLM"],
        "vocab_size": words.shape[0],
        "hidden_size": words.shape[1],
        "num_hidden_layers": _needed(arguments, "encoder_layers", path),
        "num_attention_heads": _needed(arguments, "encoder_attention_heads", path),
        "intermediate_size": _needed(arguments, "encoder_ffn_embed_dim", path),
        "hidden_act": _needed(arguments, "activation_fn", path),
        "hidden_dropout_prob": arguments.get("dropout", 0.1),
        "attention_probs_dropout_prob": arguments.get("attention_dropout", 0.1),
        "max_position_embeddings": places.shape[0],
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "bos_token_id": SPECIAL.index("<s>"),
        "pad_token_id": SPECIAL.index("<pad>"),
        "eos_token_id": SPECIAL.index("</s>"),
        "tie_word_embeddings": not arguments.get("untie_weights_roberta", False),
    }
    return config, found


def vocabulary(path: Path | str) -> list[str]:
    """The tokens of a dictionary (`dict.txt`: a token and its count on each line), by their ids."""
    words = [line.rpartition(" ")[0] for line in read_text(Path(path)).splitlines() if line]
    if not words or not all(words):
        raise InvalidInput(f"{path} is no dictionary of fairseq: a line of it is a token, a space and a number")
    return [*SPECIAL, *words, "<mask>"]


def fits(path: Path) -> bool:
    """A checkpoint with its dictionary beside it; a folder of Hugging Face's has another configuration."""
    return path.is_file() and path.suffix == ".pt" and (path.parent / "dict.txt").is_file()


def content(path: Path) -> Content:
    """The checkpoint as it is converted; its dictionary goes along."""
    config, tensors = read(path)
    size, rows = len(vocabulary(path.parent / "dict.txt")), config["vocab_size"]
    if size > rows:
        raise InvalidInput(f"{path} has {rows} tokens and the dictionary beside it {size}; it is another model's")
    return Content(config, tensors, [path.parent / "dict.txt"])


def _unpickle(path: Path) -> Any:
    if not path.is_file():
        raise InvalidInput(f"{path} is no file; give a checkpoint of fairseq, such as model.pt")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{path} holds more than tensors and arguments, and is not opened: {reason}") from None
    except Exception as error:  # a truncated pickle can raise anything
        lines = str(error).splitlines() or [type(error).__name__]
        raise InvalidInput(f"{path} is no whole checkpoint: {lines[0]}") from None


def _arguments(saved: Any, path: Path) -> dict[str, Any]:
    """The options of the model: of the whole command line, or since fairseq 0.10 of its part 'model'."""
    arguments = saved.get("args") if isinstance(saved, Mapping) else None
    if arguments is None and isinstance(saved, Mapping) and isinstance(saved.get("cfg"), Mapping):
        arguments = saved["cfg"].get("model")
    if isinstance(arguments, argparse.Namespace):
        arguments = vars(arguments)
    if not isinstance(arguments, Mapping):
        raise InvalidInput(f"{path} is no checkpoint of fairseq: it has no 'args' that say what the model is")
    return dict(arguments)


def _needed(arguments: Mapping[str, Any], name: str, path: Path) -> Any:
    if name not in arguments:
        raise InvalidInput(f"{path}: its arguments do not say {name}")
    return arguments[name]


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Splits the projections of queries, keys and values, which the first releases had in one matrix."""
    separate = {}
    for name, tensor in tensors.items():
        if name.endswith(("in_proj_weight", "in_proj_bias")):
            start, leaf = name.split("in_proj_")
            separate.update({f"{start}{letter}_proj.{leaf}": piece for letter, piece in zip("qkv", tensor.chunk(3))})
        else:
            separate[name] = tensor
    return separate


def _renamed(name: str, path: Path) -> str:
    bare = re.sub(r"^(decoder|encoder)\.(sentence_encoder\.)?", "", name)
    for pattern, there in NAMES:
        matched = re.fullmatch(pattern, bare)
        if matched:
            return matched.expand(there)
    raise Unsupported(f"{path}: a RoBERTa for masked tokens has no {name}")


FAIRSEQ = Format("a checkpoint of fairseq's RoBERTa with dict.txt beside it", fits, content)

__all__ = ["FAIRSEQ", "read", "vocabulary"]
