"""What a row says, and the sizes and bodies that several papers share."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One model of one paper."""

    model: str  # a name of the registry
    options: Options
    paper: str
    parameters: str = ""  # as printed
    exact: int | None = None
    lengths: tuple[int, ...] = ()  # in training, and in evaluation where that is another
    remarks: str = ""


def rows(base: Preset, table: Mapping[str, Options]) -> dict[str, Preset]:
    """Rows that differ from `base` by what is given; `options` are added to its options."""
    return {
        name: replace(base, **{**given, "options": {**base.options, **given.get("options", {})}})
        for name, given in table.items()
    }


def sizes(layers: int, width: int, heads: int, hidden: int | None = None) -> dict[str, int]:
    return {"layers": layers, "width": width, "heads": heads, "hidden": hidden or 4 * width}


# How GPT and BERT begin, and what they drop

WEIGHTS: Options = {
    "activation": "gelu_tanh",
    "position": "learned",
    "scale": False,
    "init": "normal",
    "init_std": 0.02,
}
DROPOUT: Options = {"dropout": 0.1, "attention_dropout": 0.1}

# BERT's and RoBERTa's body, for the encoders that start from their weights

ROBERTA: Options = {
    **sizes(12, 768, 12),
    **WEIGHTS,
    **DROPOUT,
    "activation": "gelu",
    "embedding_norm": True,
    "vocabulary": 50265,
}
BART: Options = {**ROBERTA, "max_length": 1024, "source_length": 1024}

# The base model of the Transformer, for papers that change its mechanism only

BASE = Preset(model="decoder", paper="", options={**sizes(6, 512, 8, 2048), "vocabulary": 32000})

__all__ = ["BART", "BASE", "DROPOUT", "ROBERTA", "WEIGHTS", "Options", "Preset", "rows", "sizes"]
