"""How a tokenizer cuts a text."""

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
    """Of many lines."""

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
        """(from, to, lines), the lengths in at most `bars` parts of the same width."""
        longest = max(self.lengths, default=0)
        width = -(-(longest + 1) // bars)
        found = [[start, start + width - 1, 0] for start in range(0, longest + 1, width)]
        for length, count in self.lengths.items():
            found[length // width][2] += count
        return [(start, stop, count) for start, stop, count in found]


def measure(tokenizer: Tokenizer, lines: Iterable[str]) -> Statistics:
    """How these lines are cut."""
    found, rest = Statistics(), iter(lines)
    while some := list(islice(rest, AT_ONCE)):
        for line, each in zip(some, tokenizer.encode_many(some, special=False)):
            found.lines += 1
            found.words += len(line.split())
            found.characters += len(line)
            found.bytes += len(line.encode("utf-8", "replace"))
            found.tokens += len(each)
            found.unknown += 0 if tokenizer.unk is None else each.ids.count(tokenizer.unk)
            found.lengths[len(each)] += 1
    if not found.lines:
        raise InvalidInput("there is no text to measure")
    return found


__all__ = ["Statistics", "measure"]
