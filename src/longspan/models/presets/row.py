"""The type of a preset, and the sizes and options that several papers share."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One model of one paper."""

    model: str  # its name in the registry
    options: Options
    paper: str
    parameters: str = ""  # as printed
    exact: int | None = None
    lengths: tuple[int, ...] = ()  # of training, and of evaluation if it differs
    remarks: str = ""


def rows(base: Preset, table: Mapping[str, Options]) -> dict[str, Preset]:
    """Presets that change fields of `base`; their `options` are added to those of `base`."""
    return {
        name: replace(base, **{**changes, "options": {**base.options, **changes.get("options", {})}})
        for name, changes in table.items()
    }


def sizes(layers: int, width: int, heads: int, hidden: int | None = None) -> dict[str, int]:
    return {"layers": layers, "width": width, "heads": heads, "hidden": hidden or 4 * width}


# Initial weights and dropout of GPT and BERT

WEIGHTS: Options = {
    "activation": "gelu_tanh",
    "position": "learned",
    "scale": False,
    "init": "normal",
    "init_std": 0.02,
}
DROPOUT: Options = {"dropout": 0.1, "attention_dropout": 0.1}

# RoBERTa's body, for encoders that start from its weights

ROBERTA: Options = {
    **sizes(12, 768, 12),
    **WEIGHTS,
    **DROPOUT,
    "activation": "gelu",
    "embedding_norm": True,
    "vocabulary": 50265,
}
BART: Options = {**ROBERTA, "max_length": 1024, "source_length": 1024}

# The Transformer's base model, for papers that change only its attention

BASE = Preset(model="decoder", paper="", options={**sizes(6, 512, 8, 2048), "vocabulary": 32000})

__all__ = ["BART", "BASE", "DROPOUT", "ROBERTA", "WEIGHTS", "Options", "Preset", "rows", "sizes"]
