"""What the tests of tasks share: a tokenizer, and a small model of ours in a folder, as a pretrained one would be."""

from pathlib import Path

import torch

from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.models import build
from longspan.train.fit import train
from longspan.train.recipe import Recipe, begin

WORDS = ["good", "bad", "film", "plot", "the", "a", "was", "very", "Paris", "London", "lives", "in", "Anna", "where"]


def tokenizer() -> Tokenizer:
    return learn(TokenizerOptions(kind="wordpiece", size=200, frequency=1), [" ".join(WORDS)])


def pretrained(folder: Path, name: str = "encoder", max_length: int = 128) -> Path:
    """Not trained in truth; what matters is that it has a body, a tokenizer and no head."""
    torch.manual_seed(0)
    own = tokenizer()
    options = {"position": "learned", "max_length": max_length, "init": "normal"}
    model = build(name, vocabulary=own.size, width=32, layers=2, heads=2, hidden=64, dropout=0.0, **options)
    model.save(folder, tokenizer=own.to_json())
    return folder


def run(folder: Path, task: dict[str, object], model: dict[str, object], **options: object) -> dict[str, float]:
    """Trains by a recipe; the last figures."""
    given = {"steps": 60, "schedule": {"kind": "constant", "rate": 3e-3}, **options}
    return train(begin(Recipe(task, model, given, "test.toml"), folder, data=None))
