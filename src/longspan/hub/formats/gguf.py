"""Llama models in GGUF files, the format of llama.cpp: `read`, `write`, and `tokenizer` for the vocabulary inside.

In GGUF, rotary pairs of queries and keys are adjacent, a tied output layer is left out, and the rotary scaling of
Llama 3.1 is a tensor of divisors.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import UnionType
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub import families
from longspan.hub.formats.gguf_file import GgufFile
from longspan.hub.formats.gguf_tokenizer import build
from longspan.hub.formats.rotary_order import to_halves, to_pairs
from longspan.hub.pretrained import Pretrained
from longspan.hub.weight_mapping import export_weights
from longspan.nn.rotary_scaling import RotaryScaling, frequencies
from longspan.parsing import refusing

SPEAKER = "LlamaForCausalLM"
DIVISORS = "rope_freqs.weight"
# Hugging Face's names and GGUF's; `*` is the number of a layer.
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.*.input_layernorm": "blk.*.attn_norm",
    "model.layers.*.self_attn.q_proj": "blk.*.attn_q",
    "model.layers.*.self_attn.k_proj": "blk.*.attn_k",
    "model.layers.*.self_attn.v_proj": "blk.*.attn_v",
    "model.layers.*.self_attn.o_proj": "blk.*.attn_output",
    "model.layers.*.post_attention_layernorm": "blk.*.ffn_norm",
    "model.layers.*.mlp.gate_proj": "blk.*.ffn_gate",
    "model.layers.*.mlp.up_proj": "blk.*.ffn_up",
    "model.layers.*.mlp.down_proj": "blk.*.ffn_down",
}
IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
TOKENIZER = "tokenizer."
# Meta's releases, which differ in the factor only; a file holds the divisors, not these numbers.
RELEASED = RotaryScaling(kind="llama3", low=1.0, high=4.0, original_length=8192)


class Llama(Mapping[str, Tensor]):
    """The tensors of a file under Hugging Face's names, and `config`, the equivalent of its config.json."""

    def __init__(self, path: Path | str) -> None:
        self.file = GgufFile(Path(path))
        self.config = _config(self.file)
        names = {_numbered(there): here for here, there in NAMES.items()}
        self.names = {_renamed(name, names): name for name in self.file if name != DIVISORS}
        self.nbytes = self.file.nbytes

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.file[self.names[name]]
        heads = _paired(name, self.config["num_attention_heads"], self.config["num_key_value_heads"])
        if heads is None:
            return tensor
        if not tensor.dim() or tensor.shape[0] % (2 * heads):
            raise InvalidInput(f"{self.file.path}: {self.names[name]} has no rows for {heads} heads of pairs")
        return to_halves(tensor, heads)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def read(path: Path) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """The equivalent of config.json for a GGUF file, and its tensors under Hugging Face's names."""
    with refusing(path):
        llama = Llama(path)
    return llama.config, llama


def tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer whose vocabulary is in a GGUF file."""
    with refusing(path):
        return build(GgufFile(Path(path)).metadata, Path(path))


def write(
    model: Pretrained, path: Path | str, *, half: bool = False, tokenizer: Mapping[str, Any] | None = None
) -> None:
    """Writes a Llama in float32 or, with `half`, its matrices in float16; `tokenizer` is GGUF metadata.

    >>> write(pretrained, "model.gguf", tokenizer=GgufFile(Path("other.gguf")).metadata)
    """
    try:
        from gguf import GGUFWriter, LlamaFileType
    except ImportError:
        raise Unsupported("writing GGUF files needs the package gguf: `pip install longspan[gguf]`") from None
    family = families.find("llama", "llama")
    options = model.model.options
    if model.model.name != family.model:
        raise Unsupported(f"a GGUF file is written from a model {family.model!r}, and this is {model.model.name!r}")
    if options.tasks:
        raise Unsupported("a GGUF file has no heads for tasks; load the model with tasks=[] to write its body")
    if options.activation != "swiglu":
        raise Unsupported(f"llamas in GGUF files have the activation swiglu, and this model {options.activation!r}")
    written = {**family.config(options, before=SPEAKER), "architectures": [SPEAKER]}
    family.check(options, written)
    record = {**model.config, **written}
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.part")
    writer = GGUFWriter(unfinished, "llama")
    _write_metadata(writer, record, options)
    writer.add_file_type(LlamaFileType.MOSTLY_F16 if half else LlamaFileType.ALL_F32)
    for key, value in (tokenizer or {}).items():
        if key.startswith(TOKENIZER):
            _add(writer, key, value)
    names = {_numbered(here): there for here, there in NAMES.items()}
    tensors = {DIVISORS: _divisors(options)} if _divided(options.rotary_scaling) else {}
    for name, tensor in export_weights(model.model, family, record).items():
        heads = _paired(name, options.heads, options.kv_heads or options.heads)
        tensors[_renamed(name, names)] = tensor if heads is None else to_pairs(tensor, heads)
    for name, tensor in tensors.items():
        kind = torch.float16 if half and tensor.dim() > 1 else torch.float32
        writer.add_tensor(name, tensor.detach().to(kind).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)


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


# Metadata


def _config(file: GgufFile) -> dict[str, Any]:
    """GGUF metadata as the entries of a config.json."""
    metadata, path = file.metadata, file.path
    kind = metadata.get("general.architecture")
    if kind != "llama":
        raise Unsupported(f"{path} is a {kind!r}; of GGUF files those of llama are read")
    if metadata.get("split.count", 1) not in (0, 1):
        raise Unsupported(f"{path} is one of {metadata['split.count']} parts; put them together with llama-gguf-split")
    if metadata.get("llama.expert_count", 0):
        raise Unsupported(f"{path} has {metadata['llama.expert_count']} experts in each layer; a llama has none")

    def number(key: str, kinds: type | UnionType = int, default: Any = None) -> Any:
        """A positive number of the metadata; required unless it has a default."""
        found: Any = metadata.get(f"llama.{key}", default)
        if found is None:
            raise InvalidInput(f"{path} does not say llama.{key}")
        right = isinstance(found, kinds) and not isinstance(found, bool)
        if not right or not 0 < float(found) < math.inf:
            raise InvalidInput(f"{path}: llama.{key} must be a number above 0, not {found!r:.60}")
        return found

    width, heads = number("embedding_length"), number("attention.head_count")
    head_dim = number("attention.key_length", default=max(1, width // heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if metadata.get(f"llama.{key}", head_dim) != head_dim:
            raise Unsupported(f"{path}: llama.{key} is {metadata[f'llama.{key}']}, and a head is {head_dim} wide")
    if "token_embd.weight" not in file:
        raise InvalidInput(f"{path} lacks token_embd.weight")
    if len(file.entries["token_embd.weight"].shape) != 2:
        raise InvalidInput(f"{path}: token_embd.weight must have two dimensions")
    base = number("rope.freq_base", int | float, 10000.0)
    ids = {
        key: metadata[f"{TOKENIZER}ggml.{other}"]
        for key, other in IDS.items()
        if f"{TOKENIZER}ggml.{other}" in metadata
    }
    return {
        "model_type": "llama",
        "architectures": [SPEAKER],
        "vocab_size": file.entries["token_embd.weight"].shape[0],
        "hidden_size": width,
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "intermediate_size": number("feed_forward_length"),
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon", int | float),
        "attention_bias": "blk.0.attn_q.bias" in file,
        "mlp_bias": "blk.0.ffn_gate.bias" in file,
        "tie_word_embeddings": "output.weight" not in file,
        "rope_theta": base,
        "rope_scaling": _scaling(file, head_dim, base),
        **ids,
    }


def _scaling(file: GgufFile, head_dim: int, base: float) -> dict[str, Any] | None:
    metadata, prefix = file.metadata, "llama.rope.scaling."
    if DIVISORS in file:
        return _released(file, head_dim, base)
    kind = metadata.get(f"{prefix}type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise Unsupported(f"{file.path}: {prefix}type is {kind!r}; it can be none, linear or yarn")
    if f"{prefix}factor" not in metadata:
        raise InvalidInput(f"{file.path} does not say {prefix}factor")
    scaling = {"rope_type": kind, "factor": metadata[f"{prefix}factor"]}
    if kind == "linear":
        return scaling
    if metadata.get(f"{prefix}attn_factor", 1.0) != 1.0:
        raise Unsupported(f"{file.path}: {prefix}attn_factor is {metadata[f'{prefix}attn_factor']}; it can be 1")
    for here, there in (
        ("original_max_position_embeddings", "original_context_length"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
    ):
        if f"{prefix}{there}" in metadata:
            scaling[here] = metadata[f"{prefix}{there}"]
    return scaling


def _released(file: GgufFile, head_dim: int, base: float) -> dict[str, Any]:
    """The scaling of Llama 3.1 and later, derived from the divisors of the frequencies."""
    divisors = file[DIVISORS].double()
    if not divisors.numel() or not divisors.isfinite().all():
        raise InvalidInput(f"{file.path}: {DIVISORS} must be finite numbers")
    scaling = replace(RELEASED, factor=max(1.0, round(float(divisors.max()), 4)))
    expected = frequencies(head_dim, base) / frequencies(head_dim, base, scaling)
    if divisors.shape != expected.shape or not torch.allclose(divisors, expected, rtol=1e-5):
        raise Unsupported(f"{file.path}: {DIVISORS} are not those of llama3, with 1 to 4 turns in 8192 tokens")
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low,
        "high_freq_factor": scaling.high,
        "original_max_position_embeddings": scaling.original_length,
    }


def _divided(scaling: RotaryScaling | None) -> bool:
    if scaling is None or scaling.kind != "llama3":
        return False
    if scaling != replace(RELEASED, factor=scaling.factor):
        raise Unsupported(f"a GGUF file holds llama3's scaling as {RELEASED}, and this model has {scaling}")
    return True


def _divisors(options: Any) -> Tensor:
    head_dim = options.head_dim or options.width // options.heads
    plain = frequencies(head_dim, options.rotary_base)
    return plain / frequencies(head_dim, options.rotary_base, options.rotary_scaling)


def _write_metadata(writer: Any, record: Mapping[str, Any], options: Any) -> None:
    writer.add_context_length(options.max_length)
    writer.add_embedding_length(options.width)
    writer.add_block_count(options.layers)
    writer.add_feed_forward_length(options.hidden)
    writer.add_head_count(options.heads)
    writer.add_head_count_kv(options.kv_heads or options.heads)
    writer.add_layer_norm_rms_eps(options.eps)
    writer.add_vocab_size(options.vocabulary)
    head_dim = options.head_dim or options.width // options.heads
    writer.add_rope_dimension_count(head_dim)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(options.rotary_base)
    scaling, prefix = options.rotary_scaling, "llama.rope.scaling."
    if scaling is not None and scaling.kind != "llama3":
        if scaling.amplitude is not None or not scaling.round_bounds:
            raise Unsupported("a GGUF file holds the scaling yarn with its own amplitude and whole features only")
        _add(writer, f"{prefix}type", scaling.kind)
        writer.add_float32(f"{prefix}factor", scaling.factor)
        if scaling.kind == "yarn":
            _add(writer, f"{prefix}original_context_length", scaling.original_length)
            writer.add_float32(f"{prefix}yarn_beta_slow", scaling.low)
            writer.add_float32(f"{prefix}yarn_beta_fast", scaling.high)
    for key, other in IDS.items():
        if isinstance(record.get(key), int) and record[key] >= 0:
            _add(writer, f"{TOKENIZER}ggml.{other}", record[key])


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


__all__ = ["Llama", "read", "tokenizer", "write"]
