"""Options that models of text share: the vocabulary, and the attention of each layer."""

from dataclasses import dataclass

from longspan.attention.config import AttentionConfig
from longspan.config import option
from longspan.models.body import BodyOptions

DENSE = (AttentionConfig("softmax"),)


@dataclass(frozen=True, kw_only=True)
class TextOptions(BodyOptions):
    """The options of a body that reads tokens."""

    vocabulary: int = option(256, "number of token ids", low=1)
    padding: int | None = option(None, "the id of padding, whose embedding is zero", low=0)
    attention: tuple[AttentionConfig, ...] = option(DENSE, "attention of each layer, repeated from the bottom up")


__all__ = ["DENSE", "TextOptions"]
