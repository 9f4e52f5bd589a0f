"""Statistics of a tokenizer on a text: tokens per word, unknown tokens, lengths."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput

AT_ONCE = 1000  # lines


@dataclass
class Statistics:
    """Counts over many lines."""

    lines: int = 0
    words: int = 0
    characters: int = 0
    bytes: int = 0
    tokens: int = 0
    unknown: int = 0
    lengths: Counter[int] = field(default_factory=Counter)  # lines by their number of tokens

    def plain(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "words": self.words,
            "characters": self.characters,
            "tokens": self.tokens,
            "tokens_per_word": self.tokens / max(self.words, 1),
            "bytes_per_token": self.bytes / max(self.tokens, 1),
            "unknown_rate": self.unknown / max(self.tokens, 1),
            "longest": max(self.lengths, default=0),
            "lengths": dict(sorted(self.lengths.items())),
        }

    def histogram(self, bars: int) -> list[tuple[int, int, int]]:
        """(from, to, lines): the lengths in at most `bars` bins of equal width."""
        longest = max(self.lengths, default=0)
        width = -(-(longest + 1) // bars)
        bins = [[start, start + width - 1, 0] for start in range(0, longest + 1, width)]
        for length, count in self.lengths.items():
            bins[length // width][2] += count
        return [(start, stop, count) for start, stop, count in bins]


def measure(tokenizer: Tokenizer, lines: Iterable[str]) -> Statistics:
    """Tokenise lines and count."""
    counts, rest = Statistics(), iter(lines)
    while chunk := list(islice(rest, AT_ONCE)):
        for line, encoded in zip(chunk, tokenizer.encode_many(chunk, special=False)):
            counts.lines += 1
            counts.words += len(line.split())
            counts.characters += len(line)
            counts.bytes += len(line.encode("utf-8", "replace"))
            counts.tokens += len(encoded)
            counts.unknown += 0 if tokenizer.unk is None else encoded.ids.count(tokenizer.unk)
            counts.lengths[len(encoded)] += 1
    if not counts.lines:
        raise InvalidInput("there is no text to measure")
    return counts


__all__ = ["Statistics", "measure"]
