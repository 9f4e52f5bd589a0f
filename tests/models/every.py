"""A small model of every kind in the registry, and of every mechanism, with something to read.

word2vec is not here: it has no forward pass, and trains by hand.
"""

from typing import Any

import torch
from torch import Tensor

from longspan.attention import registry as attention
from longspan.audit.settings import small
from longspan.models import build
from longspan.models.base import Model

SIZES: dict[str, Any] = {"vocabulary": 11, "layers": 2, "width": 16, "heads": 2, "hidden": 32}

KINDS: dict[str, dict[str, Any]] = {
    "encoder": SIZES | {"tasks": [{"task": "masked"}]},
    "decoder": SIZES,
    "transformer": SIZES,
    "recurrent": {"vocabulary": 11, "width": 16, "layers": 2},
    "regressor": {"values": 3, "width": 16},
    "series_transformer": {"values": 3, "layers": 2, "width": 16, "heads": 2, "hidden": 32},
    "seq2seq": {"vocabulary": 11, "source_vocabulary": 11, "embedding": 12, "width": 16, "maxout": 6},
    "elmo": {"cells": 24, "projection": 8, "filters": (4, 4, 6), "character_width": 5, "characters": 12},
    "etc_model": SIZES | {"global_tokens": 3, "radius": 3, "labels": 2},
    "universal": SIZES,
    "universal_decoder": SIZES,
    "universal_encoder": SIZES,
    "transformer_xl": SIZES | {"segment": 8, "memory": 8},
    "vit": {
        "tasks": [{"task": "classify", "labels": 5}], "layers": 2, "width": 16, "heads": 2, "hidden": 32,
        "image_size": (8, 12), "patch_size": 4,
    },
    "resnet": {
        "tasks": [{"task": "classify", "labels": 5}], "blocks": (1, 2), "width": 8, "heads": 2, "kernel": 3,
        "spatial": ("convolution", "attention"), "nonlocal_blocks": (0, 1), "stem": "small",
    },
    "set_transformer": {"features": 3, "width": 16, "heads": 2, "points": 4, "seeds": 2, "outputs": 5},
    "perceiver": {
        "tasks": [{"task": "classify", "labels": 5}], "latents": 5, "width": 16, "reads": 3, "blocks": 2, "heads": 2,
        "bands": 3, "image_size": (8, 12),
    },
    "image_decoder": {
        "layers": 2, "width": 16, "heads": 2, "hidden": 32, "image_size": (2, 4), "channels": 3, "levels": 8,
    },
    "axial_transformer": {
        "width": 16, "heads": 2, "exterior_layers": 2, "outer_layers": 2, "inner_layers": 2, "image_size": (2, 4),
        "channels": 3, "levels": 8, "output_scale": 1.0,
    },
    "table_transformer": {
        "columns": [{"name": "a"}, {"name": "b"}, {"name": "c", "kind": "category", "values": ("x", "y")}],
        "tasks": [{"task": "classify", "labels": 5}], "layers": 2, "width": 16, "heads": 2, "hidden": 24,
    },
    "compressive": SIZES | {"segment": 8, "memory": 8, "slots": 4, "ratio": 2},
    "electra": SIZES | {"mask": 1},
}  # fmt: skip


def of_kind(name: str, **options: Any) -> Model:
    torch.manual_seed(0)
    return build(name, **{**KINDS[name], **options})


def of_mechanism(name: str, **options: Any) -> Model:
    """A decoder where the mechanism has a causal form, else an encoder."""
    kind = "decoder" if attention.find(name).supports.causal else "encoder"
    setting = {"name": name, **small(name)[0]}
    return of_kind(kind, attention=setting, max_length=64, **options)


def read(model: Model, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a model gives out, whichever way it is read."""
    ids = torch.arange(2 * 21, device=model.device).view(2, 21) % 11
    torch.manual_seed(1)  # of dropout, and of what ELECTRA's generator puts in
    generator = torch.Generator().manual_seed(1)
    out: Any
    if model.name == "elmo":
        out = model(ids[..., None].expand(*ids.shape, 12) + 1)
    elif model.name == "set_transformer":
        out = model(torch.randn(2, 9, 3, generator=generator, dtype=dtype).to(model.device))
    elif model.name in ("image_decoder", "axial_transformer"):
        out = model(torch.arange(2 * 24, device=model.device).view(2, 2, 4, 3) % 8)
    elif model.name == "table_transformer":
        numbers = torch.randn(3, 2, generator=generator, dtype=dtype)
        numbers[0, 1] = torch.nan
        out = model.outputs(numbers.to(model.device), torch.arange(3, device=model.device)[:, None])["classify"]
    elif model.name in ("vit", "resnet", "perceiver"):
        out = model.outputs(torch.randn(2, 3, 8, 12, generator=generator, dtype=dtype).to(model.device))["classify"]
    elif model.name in ("regressor", "series_transformer"):
        out = model(torch.randn(2, 21, 3, generator=generator, dtype=dtype).to(model.device))
    elif model.name == "electra":
        out = model(ids, ids, ids % 3 == 0).detections
    elif model.name == "etc_model":
        out = torch.cat(model(ids, ids[:, :3]), 1)
    elif model.name == "encoder":
        out = model.outputs(ids)["masked"]
    else:
        out = model(ids, ids) if getattr(model, "reads_source", False) else model(ids)
    found: Tensor = out[0] if isinstance(out, tuple) else out  # and the memory after it
    return found
