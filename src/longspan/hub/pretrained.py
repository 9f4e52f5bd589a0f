"""`Pretrained`: a model loaded from disk, with its tokenizer and settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.data import Tokenizer
from longspan.hub.sentence_pooling import SentencePooling
from longspan.models.base import Model
from longspan.nn.heads import Head


@dataclass
class Pretrained:
    """A model loaded from disk, with its tokenizer and settings."""

    model: Model
    family: str | None = None  # `model_type` of Hugging Face; None: a folder of longspan's
    config: dict[str, Any] = field(default_factory=dict)  # config.json as read; keys we do not use are written back
    labels: list[str] = field(default_factory=list)  # the names of a classifier's labels
    unused: list[str] = field(default_factory=list)  # tensors in the file of heads that were not asked for
    fresh: list[str] = field(default_factory=list)  # tensors of heads that the file lacks: not trained yet
    tokenizer: Tokenizer | None = None
    generation: dict[str, Any] = field(default_factory=dict)  # generation_config.json as read
    sentence: SentencePooling | None = None  # how sentence-transformers pools token vectors into one
    path: Path | None = None  # where it was loaded from


def head_labels(model: Model) -> list[str]:
    """The label names in a model's own options."""
    heads: Sequence[Head] = getattr(model.options, "tasks", None) or ()
    return next((list(head.names) for head in heads if head.names), [])


__all__ = ["Pretrained", "head_labels"]
