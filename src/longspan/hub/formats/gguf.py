"""Models in GGUF files, the format of llama.cpp: `read`, `write`, and `tokenizer` for the vocabulary inside.

In GGUF, rotary pairs of queries and keys of some architectures are adjacent, gains of Gemma's norms have 1 added, a
tied output layer is left out, some rotary scalings are tensors of divisors, and the experts of gpt-oss have separate
matrices of gates and values. `gguf_architectures.py` says which architecture has what.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub import families
from longspan.hub.formats import gguf_rope
from longspan.hub.formats.gguf_architectures import Architecture, of_family, of_file
from longspan.hub.formats.gguf_file import GgufFile
from longspan.hub.formats.gguf_tokenizer import build
from longspan.hub.formats.rotary_order import to_halves, to_pairs
from longspan.hub.pretrained import Pretrained
from longspan.hub.weight_mapping import export_weights
from longspan.parsing import refusing

IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
TOKENIZER = "tokenizer."
# By whether norms are RMS norms: the key in config.json and here.
EPSILON = {
    True: ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    False: ("layer_norm_eps", "attention.layer_norm_epsilon"),
}
# Of gpt-oss: the tensors there that one of Hugging Face's consists of.
PARTS = {
    "mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    "mlp.experts.down_proj": ("ffn_down_exps.weight",),
    "mlp.experts.down_proj_bias": ("ffn_down_exps.bias",),
    "self_attn.sinks": ("attn_sinks.weight",),
}


class GgufModel(Mapping[str, Tensor]):
    """The tensors of a file under Hugging Face's names, and `config`, the equivalent of its config.json."""

    def __init__(self, path: Path | str) -> None:
        self.file = GgufFile(Path(path))
        self.architecture = of_file(self.file)
        self.config = _config(self.file, self.architecture)
        names = {_numbered(there): here for here, there in self.architecture.names.items()}
        divisors = {gguf_rope.DIVISORS, *gguf_rope.FACTORS.values()}
        self.names: dict[str, tuple[str, ...]] = {}
        for name in self.file:
            if name in divisors:
                continue
            whole, parts = _whole(name) if self.architecture.name == "gpt-oss" else (None, ())
            self.names[_renamed(name, names) if whole is None else whole] = parts or (name,)
        self.nbytes = self.file.nbytes

    def __getitem__(self, name: str) -> Tensor:
        for part in self.names[name]:
            if part not in self.file:
                raise InvalidInput(f"{self.file.path} lacks {part}")
        tensors = [self.file[part] for part in self.names[name]]
        if "mlp.experts." in name:
            return _joined_experts(name, tensors)
        (tensor,) = tensors
        if self.architecture.offset and name.endswith("norm.weight"):
            return tensor - 1
        if self.architecture.alternates is not None and self.architecture.alternates in name:
            return _by_head(tensor, self.config["num_attention_heads"], f"{self.file.path}: {self.names[name][0]}")
        heads = _paired(name, self.config["num_attention_heads"], self.config["num_key_value_heads"])
        if heads is None or not self.architecture.paired:
            return tensor
        if not tensor.dim() or tensor.shape[0] % (2 * heads):
            raise InvalidInput(f"{self.file.path}: {self.names[name][0]} has no rows for {heads} heads of pairs")
        return to_halves(tensor, heads)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def read(path: Path) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """The equivalent of config.json for a GGUF file, and its tensors under Hugging Face's names."""
    with refusing(path):
        model = GgufModel(path)
    return model.config, model


def tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer whose vocabulary is in a GGUF file."""
    with refusing(path):
        return build(GgufFile(Path(path)).metadata, Path(path))


def write(
    model: Pretrained, path: Path | str, *, half: bool = False, tokenizer: Mapping[str, Any] | None = None
) -> None:
    """Writes a model in float32 or, with `half`, its matrices in float16; `tokenizer` is GGUF metadata.

    >>> write(pretrained, "model.gguf", tokenizer=GgufFile(Path("other.gguf")).metadata)
    """
    try:
        from gguf import GGUFWriter, LlamaFileType
    except ImportError:
        raise Unsupported("writing GGUF files needs the package gguf: `pip install longspan[gguf]`") from None
    architecture = of_family(model.family)
    family, options = families.find(architecture.family, architecture.family), model.model.options
    if model.model.name != family.model:
        raise Unsupported(f"a GGUF file is written from a model {family.model!r}, and this is {model.model.name!r}")
    if options.tasks:
        raise Unsupported("a GGUF file has no heads for tasks; load the model with tasks=[] to write its body")
    if architecture.name == "llama" and options.activation != "swiglu":
        raise Unsupported(f"llamas in GGUF files have the activation swiglu, and this model {options.activation!r}")
    written = {**family.config(options, before=architecture.speaker), "architectures": [architecture.speaker]}
    family.check(options, written)
    record = {**model.config, **written}
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.part")
    writer = GGUFWriter(unfinished, architecture.name)
    _write_metadata(writer, record, options, architecture)
    writer.add_file_type(LlamaFileType.MOSTLY_F16 if half else LlamaFileType.ALL_F32)
    for key, value in (tokenizer or {}).items():
        if key.startswith(TOKENIZER):
            _add(writer, key, value)
    tensors = _tensors(export_weights(model.model, family, record), options, architecture)
    for name, tensor in tensors.items():
        kind = torch.float16 if half and tensor.dim() > 1 else torch.float32
        writer.add_tensor(name, tensor.detach().to(kind).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    try:
        # Metadata says less than config.json: what it leaves out must be what a reader assumes.
        # The padding token is the tokenizer's, which the model itself never reads.
        family.check(options, {**read(unfinished)[0], "pad_token_id": written.get("pad_token_id")})
    except (InvalidInput, Unsupported) as error:
        unfinished.unlink()
        reason = str(error).replace(f"a configuration of {family.name}", f"a GGUF file of {architecture.name}")
        raise Unsupported(reason) from None
    unfinished.replace(path)


def _tensors(theirs: Mapping[str, Tensor], options: Any, architecture: Architecture) -> dict[str, Tensor]:
    """The tensors of a GGUF file, from those under Hugging Face's names."""
    names = {_numbered(here): there for here, there in architecture.names.items()}
    tensors = gguf_rope.divisor_tensors(options)
    for name, tensor in theirs.items():
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        if layer is not None and layer[2] in PARTS:
            parts = [tensor] if layer[2] == "self_attn.sinks" else _split_experts(layer[2], tensor)
            tensors |= {f"blk.{layer[1]}.{part}": value for part, value in zip(PARTS[layer[2]], parts)}
            continue
        if architecture.offset and name.endswith("norm.weight"):
            tensor = tensor + 1
        if architecture.alternates is not None and architecture.alternates in name:
            tensor = tensor.unflatten(0, (options.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        heads = _paired(name, options.heads, options.kv_heads or options.heads) if architecture.paired else None
        tensors[_renamed(name, names)] = tensor if heads is None else to_pairs(tensor, heads)
    return tensors


# Names


def _numbered(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", r"(\d+)") + r"(\.weight|\.bias)")


def _renamed(name: str, names: Mapping[re.Pattern[str], str]) -> str:
    """The other name of a tensor; an unknown one keeps its name, which a later error gives."""
    for pattern, other in names.items():
        matched = pattern.fullmatch(name)
        if matched:
            *number, leaf = matched.groups()
            return other.replace("*", number[0] if number else "") + leaf
    return name


def _paired(name: str, heads: int, kv_heads: int) -> int | None:
    """The number of heads whose rows must be reordered, or None."""
    return heads if ".q_proj." in name else kv_heads if ".k_proj." in name else None


def _by_head(tensor: Tensor, heads: int, where: str) -> Tensor:
    """The rows of all queries, keys and values as those of the first head, then of the second, and so on."""
    if not tensor.dim() or tensor.shape[0] % (3 * heads):
        raise InvalidInput(f"{where} has no rows for queries, keys and values of {heads} heads")
    rows: Tensor = tensor.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)
    return rows


# Experts


def _whole(name: str) -> tuple[str | None, tuple[str, ...]]:
    """Hugging Face's tensor that a tensor of a GGUF file is a part of, and the names of all its parts."""
    matched = re.fullmatch(r"(blk\.(\d+)\.)(.+)", name)
    for whole, parts in PARTS.items():
        if matched is not None and matched[3] in parts:
            return f"model.layers.{matched[2]}.{whole}", tuple(matched[1] + part for part in parts)
    return None, ()


def _joined_experts(name: str, tensors: list[Tensor]) -> Tensor:
    """Gates and values in alternating columns; matrices are (inputs, outputs) there."""
    joined = tensors[0] if len(tensors) == 1 else torch.stack(tensors, 2).flatten(1, 2)
    return joined if name.endswith("_bias") else joined.mT.contiguous()


def _split_experts(name: str, tensor: Tensor) -> list[Tensor]:
    """The inverse of `_joined_experts`."""
    turned = tensor if name.endswith("_bias") else tensor.mT
    return [turned[:, ::2], turned[:, 1::2]] if "gate_up" in name else [turned]


# Metadata


def _config(file: GgufFile, architecture: Architecture) -> dict[str, Any]:
    """GGUF metadata as the entries of a config.json."""
    metadata, path, prefix = file.metadata, file.path, architecture.name
    if metadata.get("split.count", 1) not in (0, 1):
        raise Unsupported(f"{path} is one of {metadata['split.count']} parts; put them together with llama-gguf-split")
    if metadata.get(f"{prefix}.expert_count", 0) and prefix != "gpt-oss":
        count = metadata[f"{prefix}.expert_count"]
        raise Unsupported(f"{path} has {count} experts in each layer; a {prefix} has none")

    def number(key: str, kinds: type | UnionType = int, default: Any = None) -> Any:
        """A positive number of the metadata; required unless it has a default."""
        found: Any = metadata.get(f"{prefix}.{key}", default)
        if found is None:
            raise InvalidInput(f"{path} does not say {prefix}.{key}")
        right = isinstance(found, kinds) and not isinstance(found, bool)
        if not right or not 0 < float(found) < math.inf:
            raise InvalidInput(f"{path}: {prefix}.{key} must be a number above 0, not {found!r:.60}")
        return found

    width, heads = number("embedding_length"), number("attention.head_count")
    head_dim = number("attention.key_length", default=max(1, width // heads))
    for key in (
        ("attention.value_length",) if architecture.partial else ("attention.value_length", "rope.dimension_count")
    ):
        if metadata.get(f"{prefix}.{key}", head_dim) != head_dim:
            raise Unsupported(f"{path}: {prefix}.{key} is {metadata[f'{prefix}.{key}']}, and a head is {head_dim} wide")
    if "token_embd.weight" not in file:
        raise InvalidInput(f"{path} lacks token_embd.weight")
    if len(file.entries["token_embd.weight"].shape) != 2:
        raise InvalidInput(f"{path}: token_embd.weight must have two dimensions")
    base = number("rope.freq_base", int | float, 10000.0)
    rotated = number("rope.dimension_count", default=head_dim)
    ids = {
        key: metadata[f"{TOKENIZER}ggml.{other}"]
        for key, other in IDS.items()
        if f"{TOKENIZER}ggml.{other}" in metadata
    }
    hidden = {} if prefix == "gpt-oss" else {"intermediate_size": number("feed_forward_length")}
    partial = {"partial_rotary_factor": min(1.0, (rotated + 0.5) / head_dim)} if rotated != head_dim else {}
    return {
        "model_type": architecture.family,
        "architectures": [architecture.speaker],
        "vocab_size": file.entries["token_embd.weight"].shape[0],
        "hidden_size": width,
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "max_position_embeddings": number("context_length"),
        EPSILON[architecture.rms][0]: number(EPSILON[architecture.rms][1], int | float),
        "tie_word_embeddings": "output.weight" not in file,
        "pad_token_id": None,
        "rope_theta": base,
        "rope_scaling": gguf_rope.read_scaling(file, prefix, head_dim, base),
        **hidden,
        **partial,
        **ids,
        **architecture.read(file, number),
    }


def _write_metadata(writer: Any, record: Mapping[str, Any], options: Any, architecture: Architecture) -> None:
    writer.add_context_length(options.max_length)
    writer.add_embedding_length(options.width)
    writer.add_block_count(options.layers)
    writer.add_feed_forward_length(options.hidden)
    writer.add_head_count(options.heads)
    writer.add_head_count_kv(options.kv_heads or options.heads)
    _add(writer, f"{architecture.name}.{EPSILON[architecture.rms][1]}", options.eps)
    writer.add_vocab_size(options.vocabulary)
    head_dim = options.head_dim or options.width // options.heads
    writer.add_rope_dimension_count(options.rotary_dim or head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(float(record["rope_theta"]))
    scaling = gguf_rope.write_scaling(options.rotary_scaling or _full_scaling(options))
    entries = {f"rope.scaling.{key}": value for key, value in scaling.items()}
    for key, value in {**entries, **architecture.write(record)}.items():
        _add(writer, f"{architecture.name}.{key}", value)
    for key, other in IDS.items():
        if isinstance(record.get(key), int) and record[key] >= 0:
            _add(writer, f"{TOKENIZER}ggml.{other}", record[key])


def _full_scaling(options: Any) -> Any:
    """The scaling of those layers that have one; a file has one for all."""
    return next((layer.scaling for layer in options.rotary_layers or () if layer.scaling is not None), None)


def _add(writer: Any, key: str, value: Any) -> None:
    """Adds an entry of metadata by the type of its value; an existing entry stays."""
    if any(key in entries for entries in writer.kv_data):
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        raise InvalidOption(f"{key} cannot be written to a GGUF file: {value!r}")


__all__ = ["GgufModel", "read", "tokenizer", "write"]
