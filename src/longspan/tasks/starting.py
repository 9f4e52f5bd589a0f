"""Models and training to begin with, for recipes that are written for a user's own data; small enough for two cores."""

from typing import Any

Table = dict[str, Any]

_BODY: Table = {"layers": 2, "heads": 4, "width": 128, "hidden": 512, "activation": "gelu", "dropout": 0.1}
ENCODER: Table = {
    "name": "encoder",
    **_BODY,
    "embedding_norm": True,
    "position": "rotary",
    "scale": False,
    "init": "normal",
}
DECODER: Table = {
    "name": "decoder",
    **_BODY,
    "layers": 4,
    "norm_position": "pre",
    "position": "rotary",
    "scale": False,
    "init": "normal",
    "residual_init": True,
}
TRANSFORMER: Table = {"name": "transformer", **_BODY, "activation": "relu", "norm_position": "pre"}
DISCRIMINATOR: Table = {
    "name": "electra",
    **_BODY,
    "position": "rotary",
    "embedding_width": 128,
    "generator_fraction": 0.5,
    "generator_heads": 2,
}
SETS: Table = {"name": "set_transformer", "width": 64, "heads": 4, "points": 16}
PIXELS: Table = {
    "name": "image_decoder",
    **_BODY,
    "layers": 4,
    "dropout": 0.0,
    "norm_position": "pre",
    "attention": "softmax",
}
ROWS: Table = {"name": "table_transformer", "layers": 2, "heads": 4, "width": 64, "hidden": 96}
IMAGES: Table = {"name": "vit", **_BODY, "layers": 4, "width": 64, "hidden": 256, "dropout": 0.0}

# Labelled examples: passes over the data, and the best evaluation is kept.
LABELLED: Table = {
    "epochs": 10,
    "watch": "accuracy",
    "higher": True,
    "schedule": {"kind": "linear", "rate": 5e-4},
    "optimizer": {"decay": 0.01},
}
BY_F1: Table = {**LABELLED, "watch": "f1"}
ROW_TRAINING: Table = {**LABELLED, "epochs": 50, "schedule": {"kind": "linear", "rate": 1e-3}}
# Text without labels: a number of steps.
UNLABELLED: Table = {
    "steps": 1000,
    "evaluate_every": 250,
    "save_every": 250,
    "schedule": {"kind": "cosine", "rate": 1e-3, "warmup": 100, "final": 0.1},
    "optimizer": {"beta2": 0.98, "decay": 0.1},
}
PAIRS: Table = {**UNLABELLED, "schedule": {"kind": "linear", "rate": 2e-3, "warmup": 100}, "optimizer": {"beta2": 0.98}}
# A pretrained model is trained further: fewer passes, at a lower rate.
FURTHER: Table = {"epochs": 3, "schedule": {"kind": "linear", "rate": 5e-5}}
FURTHER_STEPS: Table = {"schedule": {"kind": "linear", "rate": 1e-4, "warmup": 50}}

__all__ = [
    "BY_F1",
    "DECODER",
    "DISCRIMINATOR",
    "ENCODER",
    "FURTHER",
    "FURTHER_STEPS",
    "IMAGES",
    "LABELLED",
    "PAIRS",
    "PIXELS",
    "ROWS",
    "ROW_TRAINING",
    "SETS",
    "TRANSFORMER",
    "UNLABELLED",
]
