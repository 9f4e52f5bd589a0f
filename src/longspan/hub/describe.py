"""Describe a checkpoint: what `longspan show FOLDER` prints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from longspan import config
from longspan.attention.base import Attention
from longspan.hub.load_checkpoint import load
from longspan.hub.pretrained import Pretrained
from longspan.models.base import CausalModel, Model
from longspan.models.catalog import costs_by_length
from longspan.models.cost import blank, count, longest
from longspan.models.folder import unique

# Options that are always shown; of the others, only those that differ from their defaults.
SIZES = ("vocabulary", "layers", "encoder_layers", "decoder_layers", "heads", "kv_heads", "width", "hidden")


def describe(pretrained: Pretrained | Path | str) -> dict[str, Any]:
    """Family, options, parameters, heads and tokenizer, ready for JSON."""
    if not isinstance(pretrained, Pretrained):
        pretrained = load(pretrained)
    model, tokenizer = pretrained.model, pretrained.tokenizer
    parts = count(model)
    own_length = longest(model) or getattr(getattr(model, "embedding", None), "tokens", None)  # of an image
    costs, notes = costs_by_length(model, printed=() if own_length is None else (own_length,))
    return {
        "kind": "checkpoint",
        "path": None if pretrained.path is None else str(pretrained.path),
        "family": pretrained.family,
        "architecture": (pretrained.config.get("architectures") or [None])[0],
        "model": model.name,
        "tasks": list(getattr(model, "heads", {})),
        "labels": pretrained.labels,
        "dtype": str(model.dtype).removeprefix("torch."),
        "parameters": sum(parts.values()),
        "parts": parts,
        "attention": _attention(model),
        "weight_bytes": sum(tensor.nbytes for tensor in unique(model).values()),
        "state_bytes": _state_bytes(model, [row["length"] for row in costs]),
        "costs": costs,
        "cost_notes": notes,
        "max_length": getattr(model.options, "max_length", None),
        "unused": pretrained.unused,
        "tokenizer": None
        if tokenizer is None
        else {
            "kind": type(tokenizer.inner.model).__name__,
            "size": tokenizer.size,
            "special": {role: {"token": token, "id": tokenizer.id(token)} for role, token in tokenizer.special.items()},
        },
        "options": {
            item["name"]: config.plain(getattr(model.options, item["name"]))
            for item in config.describe(type(model.options))
            if (item["name"] in SIZES and getattr(model.options, item["name"]) is not None)
            or getattr(model.options, item["name"]) != item["default"]
        },
    }


def _attention(model: Model) -> list[dict[str, Any]]:
    """The attention of each layer, in the order of the modules; of its options, those that were changed."""
    layers = []
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            options = config.plain(module.options)
            defaults = {item["name"]: item["default"] for item in config.describe(module.Options)}
            changed = {key: value for key, value in options.items() if value != defaults.get(key)}
            layer = name.removesuffix(".mechanism")
            layers.append({"layer": layer, "name": module.name, "causal": module.causal, "options": changed})
    return layers


def _state_bytes(model: Model, lengths: Sequence[int]) -> list[dict[str, int]]:
    """The memory of the state that decoding one text keeps, by the number of tokens read; [] if it does not decode.

    A model without values computes it: only shapes matter.
    """
    if not isinstance(model, CausalModel) or model.reads_source:
        return []
    sizes = []
    with torch.no_grad(), blank():
        try:
            empty = type(model)(model.options).to(model.dtype).eval()
            for length in lengths:
                _, state = empty.extend(torch.zeros(1, length, dtype=torch.int64), empty.start(1), last=True)
                sizes.append({"length": length, "bytes": int(state.bytes)})
        except (RuntimeError, NotImplementedError, AttributeError):  # an operation that needs values
            return []
    return sizes


__all__ = ["describe"]
