"""A model as it was found on disk, with what belongs to it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.data import Tokenizer
from longspan.errors import InvalidInput
from longspan.hub.sentence import Sentence
from longspan.models.base import Model

GENERATION = "generation_config.json"


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
    sentence: Sentence | None = None  # how its authors make one vector of a text
    path: Path | None = None  # where it was found


def check_tokenizer(found: Pretrained, where: Path | str) -> None:
    """Refuses a tokenizer that has ids for which the model has no rows."""
    rows = getattr(found.model.options, "vocabulary", None)
    if found.tokenizer is not None and rows is not None and found.tokenizer.size > rows:
        raise InvalidInput(
            f"{where}: the tokenizer has {found.tokenizer.size} tokens and the model {rows} rows for them; "
            "was it made for this model?"
        )


def write_around(found: Pretrained, folder: Path) -> None:
    """What belongs to a model beside its configuration and weights: tokenizer, generation, sentence vectors."""
    check_tokenizer(found, folder)
    if found.tokenizer is not None:
        found.tokenizer.save(folder)
    if found.generation:
        text = json.dumps(found.generation, indent=2, ensure_ascii=False)
        (folder / GENERATION).write_text(text + "\n", encoding="utf-8")
    if found.sentence is not None:
        found.sentence.save(folder)


__all__ = ["GENERATION", "Pretrained", "check_tokenizer", "write_around"]
