"""Describe a checkpoint: what `longspan show FOLDER` prints."""

from pathlib import Path
from typing import Any

from longspan import config
from longspan.hub.load_checkpoint import load
from longspan.hub.pretrained import Pretrained
from longspan.models.cost import count

# Options that are always shown; of the others, only those that differ from their defaults.
SIZES = ("vocabulary", "layers", "encoder_layers", "decoder_layers", "heads", "kv_heads", "width", "hidden")


def describe(pretrained: Pretrained | Path | str) -> dict[str, Any]:
    """Family, options, parameters, heads and tokenizer, ready for JSON."""
    if not isinstance(pretrained, Pretrained):
        pretrained = load(pretrained)
    model, tokenizer = pretrained.model, pretrained.tokenizer
    parts = count(model)
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


__all__ = ["describe"]
