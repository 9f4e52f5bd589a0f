"""Encode texts for a pretrained model, and check that it can read them."""

from collections.abc import Sequence

from longspan.data import Encoded, Tokenizer
from longspan.data.tokenizers.tokenizer import Side
from longspan.errors import InvalidInput
from longspan.hub.pretrained import Pretrained


def tokenizer_of(pretrained: Pretrained) -> Tokenizer:
    """The model's tokenizer; an error if it has none."""
    if pretrained.tokenizer is None:
        where = "the model" if pretrained.path is None else str(pretrained.path)
        raise InvalidInput(f"{where} has no tokenizer: put its tokenizer.json, or its vocabulary files, beside it")
    return pretrained.tokenizer


def longest_text(pretrained: Pretrained) -> int | None:
    """The most tokens that the model (or its encoder) can read; None: any number."""
    options = pretrained.model.options
    return getattr(options, "source_length", None) or getattr(options, "max_length", None)


def read_texts(
    pretrained: Pretrained,
    texts: Sequence[str],
    *,
    longest: int | None = None,
    truncate: Side | None = None,
    allow: Sequence[str] = (),
    first: int = 0,
) -> list[Encoded]:
    """Encode texts of at most `longest` tokens; longer ones are refused or, with `truncate`, cut on that side.

    `first` is the number of the first text, for errors.
    """
    tokenizer, most = tokenizer_of(pretrained), longest_text(pretrained)
    if longest is not None:
        most = longest if most is None else min(most, longest)
    encoded = tokenizer.encode_many(texts, allow=allow)
    for row, text in enumerate(encoded):
        if not len(text):
            raise InvalidInput(f"text {first + row} is empty: it has no tokens")
        if most is None or len(text) <= most:
            continue
        if truncate is None:
            raise InvalidInput(
                f"text {first + row} has {len(text)} tokens, and at most {most} can be read; "
                "shorten it, or have it cut (truncate)"
            )
        encoded[row] = tokenizer.encode_many([texts[row]], allow=allow, longest=most, truncate=truncate)[0]
    return encoded


__all__ = ["longest_text", "read_texts", "tokenizer_of"]
