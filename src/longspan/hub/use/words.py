"""Word vectors of a run, a model or a file: word2vec's, GloVe's, or the input embeddings of a text model."""

from pathlib import Path
from typing import Any

import torch

from longspan.errors import Unsupported
from longspan.hub.load_checkpoint import load
from longspan.hub.locate import locate
from longspan.hub.pretrained import Pretrained
from longspan.models.classics.vector_files import is_vectors
from longspan.models.classics.vocabulary import Vocabulary
from longspan.models.classics.word_table import WordTable
from longspan.models.word_base import WordVectors

FILES = (".vec", ".txt", ".bin")


def load_words(name: Path | str) -> WordTable:
    """The words and vectors of a run or model, or of a file in word2vec's text or binary format, or GloVe's.

    A text model gives the rows of its input embedding for those of its tokens that are whole words.
    """
    path = locate(name)
    if path.is_file() and path.suffix in FILES and (path.suffix != ".bin" or is_vectors(path)):
        return WordTable.read(path)
    return word_table(load(path))


def word_table(pretrained: Pretrained) -> WordTable:
    """The words and vectors of a loaded model."""
    model: Any = pretrained.model
    if isinstance(model, WordVectors):
        if model.words is None:
            raise Unsupported(f"this {model.name} has vectors but no words; train it by the task 'words'")
        return WordTable(model.words, model.vectors)
    matrix = getattr(getattr(model, "embedding", None) or getattr(model, "source", None), "weight", None)
    if pretrained.tokenizer is None or matrix is None:
        raise Unsupported(
            f"{pretrained.path or model.name} has no word vectors: expected a run of the task 'words', a file of "
            f"vectors ({', '.join(FILES)}), or a text model with a tokenizer, and this is {model.name!r}"
        )
    words, rows = _whole_words(pretrained)
    if not words:
        raise Unsupported(f"no token of {pretrained.path or model.name} is a whole word")
    return WordTable(Vocabulary(words, [0] * len(words)), matrix.detach()[torch.tensor(rows)].float())


def _whole_words(pretrained: Pretrained) -> tuple[list[str], list[int]]:
    """The tokens that stand for a word by themselves, and their ids."""
    tokenizer = pretrained.tokenizer
    assert tokenizer is not None
    special = set(tokenizer.specials.values())
    ids = [number for number in range(tokenizer.size) if number not in special]
    texts = [tokenizer.inner.decode([number]).strip() for number in ids]
    candidates = [(text, number) for text, number in zip(texts, ids) if text and text.replace("'", "").isalnum()]
    # A piece that continues a word decodes to the same text as the word; it is not what the word is encoded as. Many
    # tokenizers put the space before a word into its token.
    rows: dict[str, int] = {}
    for before in (" ", ""):
        encoded = tokenizer.encode_many([before + text for text, _ in candidates], special=False)
        for (text, number), token in zip(candidates, encoded):
            if token.ids == [number]:
                rows.setdefault(text, number)
    return list(rows), list(rows.values())


__all__ = ["load_words", "word_table"]
