"""Small models with a tokenizer, and subjects of measures made of them."""

from pathlib import Path
from typing import Any

from tests.models.every import of_kind

from longspan.data.tokenizers.learn import TokenizerOptions, learn
from longspan.hub import Pretrained
from longspan.inspect.measures.senses import sample_text
from longspan.inspect.measures.subject import Subject

TEXT = sample_text().strip()[:900]
PIECES = learn(TokenizerOptions(kind="wordpiece", size=120, lowercase=True), [TEXT])
BYTES = learn(TokenizerOptions(kind="bytes", special=False), [])  # ELMo reads bytes


def loaded(kind: str, **options: Any) -> Pretrained:
    vocabulary = {} if kind == "elmo" else {"vocabulary": PIECES.size}
    return Pretrained(of_kind(kind, **vocabulary, **options).eval(), tokenizer=BYTES if kind == "elmo" else PIECES)


def subject(kind: str, length: int = 24, texts: int = 4, **options: Any) -> Subject:
    return Subject(loaded(kind, **options), TEXT, length=length, texts=texts)


def saved(folder: Path, kind: str, **options: Any) -> Path:
    made = loaded(kind, **options)
    assert made.tokenizer is not None
    made.model.save(folder, tokenizer=made.tokenizer.to_json())
    return folder
