"""What is found on disk: a model, and what belongs to it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.data import Tokenizer
from longspan.hub.sentence_vectors import SentencePooling
from longspan.models.base import Model


@dataclass
class Pretrained:
    """A model as it was found on disk, with what belongs to it."""

    model: Model
    family: str | None = None  # `model_type` of Hugging Face's; None: a folder of ours
    config: dict[str, Any] = field(default_factory=dict)  # as found, so that what we do not use is written back
    labels: list[str] = field(default_factory=list)  # the names of a classifier's labels
    unused: list[str] = field(default_factory=list)  # tensors of heads that were not asked for
    fresh: list[str] = field(default_factory=list)  # tensors of heads that the file lacks: not trained yet
    tokenizer: Tokenizer | None = None
    generation: dict[str, Any] = field(default_factory=dict)  # generation_config.json, as found
    sentence: SentencePooling | None = None  # how its authors make one vector of a text
    path: Path | None = None  # where it was found


__all__ = ["Pretrained"]
