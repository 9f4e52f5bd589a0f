"""Which tokens of a vocabulary end a sentence, for models that have a global token per sentence (ETC)."""

from typing import Any

from longspan.data.text.corpora import CLOSING, ENDS
from longspan.data.tokenizers.tokenizer import Tokenizer

PREFIXES = "Ġ▁ "  # how tokenizers write the space before a word
QUOTES = {'"', "”", "’", "»"}


def sentence_options(tokenizer: Tokenizer) -> dict[str, Any]:
    """The options `global_id`, `sentence_ends` and `sentence_closers` of a model with this tokenizer."""
    vocabulary = tokenizer.inner.get_vocab(with_added_tokens=True)
    plain = {number: token.removeprefix("##").lstrip(PREFIXES) for token, number in vocabulary.items()}
    ends = sorted(number for number, token in plain.items() if token and set(token) <= ENDS)
    closers = {number for number, token in plain.items() if token in CLOSING | QUOTES}
    closers |= {number for number in (tokenizer.sep, tokenizer.eos, tokenizer.pad) if number is not None}
    first = next((number for number in (tokenizer.cls, tokenizer.bos, tokenizer.pad) if number is not None), 0)
    options: dict[str, Any] = {"global_id": first}
    if ends:
        options |= {"sentence_ends": ends, "sentence_closers": sorted(closers)}
    return options


__all__ = ["sentence_options"]
