"""What belongs to a model beside its configuration and weights: tokenizer, generation, sentence vectors."""

import json
from pathlib import Path

from longspan.data import Tokenizer, read_tokenizer
from longspan.data.files import read_json
from longspan.errors import InvalidInput
from longspan.hub.pretrained import Pretrained
from longspan.hub.sentence_vectors import read_sentence

GENERATION = "generation_config.json"


def read(found: Pretrained, folder: Path, *, tokenizer: bool = True) -> None:
    """Adds to a model what its folder has; without `tokenizer` that is not looked at."""
    found.generation, found.sentence = read_json(folder / GENERATION), read_sentence(folder)
    if tokenizer:
        found.tokenizer = read_tokenizer(folder)
        check_tokenizer(found, folder)


def write(found: Pretrained, folder: Path, tokenizer: Tokenizer | None = None) -> None:
    """Writes it to another folder; `tokenizer` stands instead of the model's own."""
    chosen = tokenizer or found.tokenizer
    if chosen is not None:
        chosen.save(folder)
    if found.generation:
        text = json.dumps(found.generation, indent=2, ensure_ascii=False)
        (folder / GENERATION).write_text(text + "\n", encoding="utf-8")
    if found.sentence is not None:
        found.sentence.save(folder)


def check_tokenizer(found: Pretrained, where: Path) -> None:
    """Refuses a tokenizer that has ids for which the model has no rows."""
    rows = getattr(found.model.options, "vocabulary", None)
    if found.tokenizer is not None and rows is not None and found.tokenizer.size > rows:
        raise InvalidInput(
            f"{where}: the tokenizer has {found.tokenizer.size} tokens and the model {rows} rows for them; "
            "was it made for this model?"
        )


__all__ = ["GENERATION", "check_tokenizer", "read", "write"]
