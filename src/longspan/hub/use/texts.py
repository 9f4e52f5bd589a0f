"""Texts for a pretrained model: encoded by its own tokenizer, and no longer than it can read."""

from collections.abc import Sequence

from longspan.data import Encoded, Tokenizer
from longspan.data.tokenizers.tokenizer import Side
from longspan.errors import InvalidInput
from longspan.hub.pretrained import Pretrained


def tokenizer_of(found: Pretrained) -> Tokenizer:
    """The tokenizer, which must be there."""
    if found.tokenizer is None:
        where = "the model" if found.path is None else str(found.path)
        raise InvalidInput(f"{where} has no tokenizer: put its tokenizer.json, or its vocabulary files, beside it")
    return found.tokenizer


def longest_text(found: Pretrained) -> int | None:
    """The most tokens that the model can read, of a source where it has one; None: any number."""
    options = found.model.options
    return getattr(options, "source_length", None) or getattr(options, "max_length", None)


def read_texts(
    found: Pretrained,
    texts: Sequence[str],
    *,
    longest: int | None = None,
    truncate: Side | None = None,
    allow: Sequence[str] = (),
    first: int = 0,
) -> list[Encoded]:
    """Texts of at most `longest` tokens; longer ones are refused or, with `truncate`, cut on that side.

    `first` is the number of the first one, for errors.
    """
    tokenizer, most = tokenizer_of(found), longest_text(found)
    if longest is not None:
        most = longest if most is None else min(most, longest)
    encoded = tokenizer.encode_many(texts, allow=allow)
    for row, each in enumerate(encoded):
        if not len(each):
            raise InvalidInput(f"text {first + row} is empty: it has no tokens")
        if most is None or len(each) <= most:
            continue
        if truncate is None:
            raise InvalidInput(
                f"text {first + row} has {len(each)} tokens, and at most {most} can be read; "
                "shorten it, or have it cut (truncate)"
            )
        encoded[row] = tokenizer.encode_many([texts[row]], allow=allow, longest=most, truncate=truncate)[0]
    return encoded


__all__ = ["longest_text", "read_texts", "tokenizer_of"]
