"""Small copies of presets, for tests and quick experiments."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from longspan.models.presets.row import Preset

# The largest value of each option in a small copy; widths and tables follow from these.
SMALL: dict[str, int] = {
    "vocabulary": 11,
    "layers": 4,
    "decoder_layers": 4,
    "heads": 4,
    "window": 4,
    "query_block": 4,
    "block": 4,
    "stride": 4,
    "summary": 2,
    "rank": 4,
    "features": 16,
    "clusters": 2,
    "local_heads": 2,
    "local_window": 4,
    "rounds": 2,
    "chunk": 4,
    "buckets": 4,
    "radius": 3,
    "global_tokens": 3,
    "labels": 2,
    "iterations": 3,
    "feedforward_chunk": 8,
    "head_dim": 8,
    "segment": 8,
    "memory": 8,
    "slots": 4,
    "divisor": 2,
    "embedding_width": 16,
    "mask": 1,
}
# Options of small copies of models whose sizes have names of their own.
OWN_SIZES: dict[str, dict[str, Any]] = {
    "recurrent": {"vocabulary": 11, "width": 16},
    "seq2seq": {"vocabulary": 11, "source_vocabulary": 11, "embedding": 12, "width": 16, "maxout": 6},
    "resnet": {"blocks": (1, 2), "width": 8, "heads": 2, "kernel": 3, "nonlocal_subsample": False},
    "set_transformer": {"width": 16, "heads": 2, "points": 4},
    "perceiver": {"latents": 5, "width": 16, "reads": 3, "blocks": 2, "heads": 2, "bands": 3, "shape": (8, 12)},
    "axial_transformer": {
        "width": 16, "heads": 2, "exterior_layers": 2, "outer_layers": 2, "inner_layers": 2, "image_size": (8, 12),
        "levels": 8, "output_scale": 1.0,
    },
    "table_transformer": {"layers": 2, "width": 16, "heads": 2, "hidden": 24},
    "elmo": {"cells": 24, "projection": 8, "filters": (4, 4, 6), "character_width": 5, "characters": 12},
}  # fmt: skip
# Options of small copies of models without tokens.
WITHOUT_TOKENS: dict[str, dict[str, Any]] = {
    "vit": {"image_size": (8, 12), "patch_size": 4},
    "image_decoder": {"image_size": (8, 12), "levels": 8, "channels": 3},
}
HEAD, LONGEST = 8, 64  # width of a head and longest text of a small copy


def shrink(preset: Preset) -> Preset:
    """The same architecture at a size for tests: a few layers, heads of 8, texts of up to 64 tokens.

    Layers that differ stay different: of many attention configurations the first, the last and some between are kept.
    """
    options = dict(preset.options)
    changed: dict[str, Any]
    if preset.model in OWN_SIZES:
        layers = {"layers": min(options["layers"], 2)} if "layers" in options else {}
        changed = {**OWN_SIZES[preset.model], **layers}
        for key in ("spatial", "nonlocal_blocks"):
            if key in options:
                changed[key] = tuple(options[key])[-3:-1]
        if preset.model == "resnet":
            changed.setdefault("spatial", ("convolution",) * 2)
            changed["nonlocal_blocks"] = tuple(min(1, count) for count in changed.get("nonlocal_blocks", (0, 0)))
        return replace(preset, options={**options, **changed}, exact=None, parameters="")
    heads = min(int(options.get("heads", 8)), SMALL["heads"])
    changed = {"heads": heads, "width": HEAD * heads, "hidden": 2 * HEAD * heads}
    changed |= WITHOUT_TOKENS.get(preset.model, {"vocabulary": 11})
    changed["layers"] = min(int(options.get("layers", 6)), SMALL["layers"])
    for key, value in options.items():
        if key.endswith("attention"):
            changed[key] = [_shrink_setting(s, heads) for s in _some(value, changed["layers"])]
        elif key in ("max_length", "source_length"):
            changed[key] = LONGEST
        elif key == "axes":
            changed[key] = tuple(min(side, 8 if len(value) == 2 else 4) for side in value)
        elif key == "axis_widths":
            shares = [max(1, width * changed["width"] // sum(value)) for width in value[:-1]]
            changed[key] = (*shares, changed["width"] - sum(shares))
        elif key == "cutoffs":
            changed[key] = tuple(range(3, changed["vocabulary"], 3))[: len(value)]
        elif key == "key_dim":
            changed[key] = HEAD // 2
        elif key == "kv_heads":
            changed[key] = 2 if heads % 2 == 0 and value < int(options.get("heads", 8)) else heads
        elif key in SMALL and key not in changed and value is not None:
            changed[key] = min(value, SMALL[key])
    if "axes" in changed and "max_length" in changed:
        changed["max_length"] = math.prod(changed["axes"])
    return replace(preset, options={**options, **changed}, exact=None, parameters="")


def _some(settings: Sequence[Any], most: int) -> list[Any]:
    if len(settings) <= most:
        return list(settings)
    return [settings[index * (len(settings) - 1) // (most - 1)] for index in range(most)]


def _shrink_setting(setting: Mapping[str, Any], heads: int) -> dict[str, Any]:
    small: dict[str, Any] = {}
    for key, value in setting.items():
        if key == "dilation" and isinstance(value, tuple):
            small[key] = value[-heads:]
        elif key in SMALL:
            small[key] = min(math.prod(value) if isinstance(value, tuple) else value, SMALL[key])
        else:
            small[key] = value
    return small


__all__ = ["shrink"]
