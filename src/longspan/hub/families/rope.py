"""Rotary settings of Hugging Face's configurations, in the old spelling and the new one.

Old: `rope_theta` and `rope_scaling`. New (transformers 5): `rope_parameters` with both; in models whose layers differ,
one table for each kind of layer.
"""

import math
from typing import Any

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.families.base import Config
from longspan.nn.rotary_scaling import RotaryScaling

THETA = 10000.0


def read_rope(given: Config, theta: float = THETA) -> dict[str, Any]:
    """The rotary settings of a configuration, old or new, in the current form; `theta` is the family's default."""
    rope = dict(given.get("rope_scaling") or given.get("rope_parameters") or {})
    rope.setdefault("rope_theta", given.get("rope_theta", theta))
    return complete(rope, given)


def complete(rope: dict[str, Any], given: Config) -> dict[str, Any]:
    """Rotary settings with their kind and the length of the first training."""
    rope = {**rope, "rope_type": rope.get("rope_type", rope.get("type", "default"))}
    if "original_max_position_embeddings" in given:
        rope["original_max_position_embeddings"] = given["original_max_position_embeddings"]
    rope.setdefault("original_max_position_embeddings", given.get("max_position_embeddings", 2048))
    return rope


def read_scaling(rope: Config, longest: int) -> RotaryScaling | None:
    """Our scaling for complete rotary settings; `longest` is the longest text."""
    kind = rope["rope_type"]
    if rope.get("partial_rotary_factor") not in (None, 1.0):
        raise Unsupported(f"config.json: partial_rotary_factor is {rope['partial_rotary_factor']!r}; it can be 1.0")
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        why = "; its turns change with the length of the text" if kind in ("dynamic", "longrope") else ""
        raise Unsupported(f"config.json: rope_type is {kind!r}; it can be default, linear, llama3 or yarn{why}")
    original = int(rope["original_max_position_embeddings"])
    factor = rope.get("factor")
    if factor is None:
        if kind != "yarn":
            raise InvalidInput(f"config.json: rope_type {kind} lacks its factor")
        factor = longest / original
    if kind == "linear":
        return RotaryScaling(kind=kind, factor=float(factor))
    if kind == "llama3":
        missing = [key for key in ("low_freq_factor", "high_freq_factor") if key not in rope]
        if missing:
            raise InvalidInput(f"config.json: rope_type llama3 lacks its {missing[0]}")
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return RotaryScaling(kind=kind, factor=float(factor), original_length=original, low=low, high=high)
    return RotaryScaling(
        kind=kind,
        factor=float(factor),
        original_length=original,
        low=float(rope.get("beta_slow") or 1),
        high=float(rope.get("beta_fast") or 32),
        amplitude=_amplitude(rope, float(factor)),
        round_bounds=bool(rope.get("truncate", True)),
    )


def _amplitude(rope: Config, factor: float) -> float | None:
    amplitude, over, under = rope.get("attention_factor"), rope.get("mscale"), rope.get("mscale_all_dim")
    if amplitude is not None or not over or not under or factor <= 1:
        return None if amplitude is None else float(amplitude)
    grown = math.log(factor) / 10
    return float((over * grown + 1) / (under * grown + 1))


def write_rope(base: float, scaling: RotaryScaling | None) -> dict[str, Any]:
    """Their settings, in the new spelling."""
    rope: dict[str, Any] = {"rope_theta": base, "rope_type": "default"}
    if scaling is None:
        return rope
    rope.update(rope_type=scaling.kind, factor=scaling.factor)
    if scaling.kind == "linear":
        return rope
    rope["original_max_position_embeddings"] = scaling.original_length
    if scaling.kind == "llama3":
        return {**rope, "low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
    rope.update(beta_slow=scaling.low, beta_fast=scaling.high)
    if scaling.amplitude is not None:
        rope["attention_factor"] = scaling.amplitude
    return rope if scaling.round_bounds else {**rope, "truncate": False}


def both_spellings(rope: dict[str, Any]) -> dict[str, Any]:
    """The entries of a configuration: the old ones as well, because other readers than transformers 5 use them."""
    old = {key: value for key, value in rope.items() if key != "rope_theta"}
    scaling = None if rope["rope_type"] == "default" else old
    return {"rope_parameters": rope, "rope_theta": rope["rope_theta"], "rope_scaling": scaling}


__all__ = ["THETA", "both_spellings", "complete", "read_rope", "read_scaling", "write_rope"]
