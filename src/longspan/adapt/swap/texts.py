"""Rows of token ids from a text, to measure a model on."""

from importlib.resources import files

import torch
from torch import Tensor

from longspan.errors import InvalidInput
from longspan.hub import Pretrained

ROWS, LENGTH = 8, 1024


def prose() -> str:
    """Some pages to measure on where nothing else is given: the beginning of War and Peace, translated by the Maudes.

    They are English and in the public domain. Rows of text make models that write or read other things look bad, but
    the original and its swap alike.
    """
    return (files("longspan.adapt.swap") / "prose.txt").read_text(encoding="utf-8")


def token_rows(pretrained: Pretrained, text: str | Tensor, *, rows: int = ROWS, length: int = LENGTH) -> Tensor:
    """Up to `rows` rows of `length` consecutive tokens, (rows, length); texts that are shorter make fewer rows.

    Rows are no longer than what the model was trained for. They begin with the token that its tokenizer begins texts
    with, and end with the one that ends them.
    """
    if isinstance(text, Tensor):
        if text.dim() != 2 or text.is_floating_point():
            raise InvalidInput(f"token rows must be whole numbers (rows, length), not {tuple(text.shape)}")
        return text
    tokenizer = pretrained.tokenizer
    if tokenizer is None:
        raise InvalidInput("the model has no tokenizer to read the text with; give token ids, (rows, length)")
    most = getattr(pretrained.model, "max_length", None) or getattr(pretrained.model.options, "max_length", None)
    length = length if most is None else min(length, most)
    framed, plain = tokenizer.encode("a").ids, tokenizer.encode("a", special=False).ids
    start = next((at for at in range(len(framed)) if framed[at : at + len(plain)] == plain), 0)
    before, after = framed[:start], framed[start + len(plain) :]
    room = length - len(before) - len(after)
    ids = tokenizer.encode(text, special=False).ids
    pieces = [ids[at : at + room] for at in range(0, min(len(ids), rows * room), room)]
    if len(pieces) > 1 and len(pieces[-1]) < room:
        pieces.pop()
    if not pieces or len(pieces[0]) < 2:
        raise InvalidInput("the text has fewer than two tokens; give more text")
    return torch.tensor([[*before, *piece, *after] for piece in pieces])


__all__ = ["LENGTH", "ROWS", "prose", "token_rows"]
