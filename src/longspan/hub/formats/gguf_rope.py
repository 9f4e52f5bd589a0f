"""Rotary settings in GGUF files: metadata, and tensors of divisors for Llama 3.1 and Phi-3."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.formats.gguf_file import GgufFile
from longspan.nn.rotary_scaling import RotaryScaling, amplitude, frequencies

DIVISORS = "rope_freqs.weight"
FACTORS = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}
# Meta's releases, which differ in the factor only; a file holds the divisors, not these numbers.
RELEASED = RotaryScaling(kind="llama3", low=1.0, high=4.0, original_length=8192)


def read_scaling(file: GgufFile, name: str, head_dim: int, base: float) -> dict[str, Any] | None:
    """The entry `rope_scaling` of a config.json for a file of the architecture `name`."""
    metadata, prefix = file.metadata, f"{name}.rope.scaling."
    if DIVISORS in file:
        return _released(file, head_dim, base)
    if any(tensor in file for tensor in FACTORS.values()):
        return _longrope(file, name)
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
    # The files do not say whether bounds are rounded; the release of gpt-oss does not round them.
    return {**scaling, "truncate": False} if name == "gpt-oss" else scaling


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


def _longrope(file: GgufFile, name: str) -> dict[str, Any]:
    metadata, prefix = file.metadata, f"{name}.rope.scaling."
    scaling: dict[str, Any] = {"rope_type": "longrope"}
    for key, tensor in FACTORS.items():
        if tensor not in file:
            raise InvalidInput(f"{file.path} lacks {tensor}")
        # The shortest decimals of float32: 1.3, not 1.2999999523162842.
        scaling[key] = [float(str(np.float32(number))) for number in file[tensor].float().flatten().tolist()]
    original, longest = metadata.get(f"{prefix}original_context_length"), metadata.get(f"{name}.context_length")
    if not isinstance(original, int) or not isinstance(longest, int) or original < 1:
        raise InvalidInput(f"{file.path} does not say {prefix}original_context_length and {name}.context_length")
    scaling["original_max_position_embeddings"] = original
    said, usual = metadata.get(f"{prefix}attn_factor"), _usual_amplitude(longest / original, original)
    if said is not None and abs(said - usual) > 1e-5 * usual:
        scaling["attention_factor"] = float(said)
    return scaling


def _usual_amplitude(factor: float, original: int) -> float:
    one = (1.0,)
    return amplitude(
        RotaryScaling(kind="longrope", factor=max(1.0, factor), original_length=original, short=one, long=one)
    )


def write_scaling(scaling: RotaryScaling | None) -> dict[str, Any]:
    """Metadata behind `….rope.scaling.`; divisors are tensors (`divisor_tensors`)."""
    if scaling is None or scaling.kind == "llama3":
        return {}
    if scaling.kind == "longrope":
        return {"original_context_length": scaling.original_length, "attn_factor": float(amplitude(scaling))}
    entries: dict[str, Any] = {"type": scaling.kind, "factor": float(scaling.factor)}
    if scaling.kind == "yarn":
        if scaling.amplitude is not None:
            raise Unsupported("a GGUF file holds the scaling yarn with its own amplitude only")
        entries["original_context_length"] = scaling.original_length
        entries |= {"yarn_beta_slow": float(scaling.low), "yarn_beta_fast": float(scaling.high)}
    return entries


def divisor_tensors(options: Any) -> dict[str, Tensor]:
    """The tensors of divisors of a model's rotary scaling."""
    scaling: RotaryScaling | None = options.rotary_scaling
    if scaling is not None and scaling.kind == "longrope":
        listed: Mapping[str, Any] = {"short_factor": scaling.short, "long_factor": scaling.long}
        return {tensor: torch.tensor(listed[key]) for key, tensor in FACTORS.items()}
    if scaling is None or scaling.kind != "llama3":
        return {}
    if scaling != replace(RELEASED, factor=scaling.factor):
        raise Unsupported(f"a GGUF file holds llama3's scaling as {RELEASED}, and this model has {scaling}")
    head_dim = options.head_dim or options.width // options.heads
    plain = frequencies(head_dim, options.rotary_base)
    return {DIVISORS: plain / frequencies(head_dim, options.rotary_base, scaling)}


__all__ = ["DIVISORS", "FACTORS", "RELEASED", "divisor_tensors", "read_scaling", "write_scaling"]
