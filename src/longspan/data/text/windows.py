"""Texts that are longer than a model reads, in windows; and what a tokenizer puts around each."""

from dataclasses import dataclass

from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidOption


@dataclass(frozen=True)
class Around:
    """The tokens before a text, between two and behind them, each with its segment; and the segments of the texts."""

    before: tuple[list[int], list[int]]
    between: tuple[list[int], list[int]]
    after: tuple[list[int], list[int]]
    segments: tuple[int, int]

    @property
    def size(self) -> int:
        return len(self.before[0]) + len(self.between[0]) + len(self.after[0])


def around(tokenizer: Tokenizer, *, pair: bool) -> Around:
    """What the tokenizer puts around a text or a pair, learned from one that is short."""
    found = tokenizer.encode("a", "a") if pair else tokenizer.encode("a")
    parts: list[tuple[list[int], list[int]]] = [([], [])]
    texts: list[int] = []
    inside = False
    for number, segment, added, offset in zip(found.ids, found.segments, found.added, found.offsets):
        # Where nothing stands between two texts, the second begins where characters are counted from 0 again.
        if added:
            parts[-1][0].append(number)
            parts[-1][1].append(segment)
            inside = False
        elif not inside or (offset[0] == 0 and len(texts) < 1 + pair and texts):
            texts.append(segment)
            parts.append(([], []))
            inside = True
    while len(parts) < 2 + pair:
        parts.append(([], []))
        texts.append(0)
    return Around(parts[0], parts[1] if pair else ([], []), parts[-1], (texts[0], texts[-1]))


def windows(count: int, room: int, step: int) -> list[tuple[int, int]]:
    """Where windows of `room` tokens begin and end in `count`; `step` is between their beginnings (BERT's doc stride).

    >>> windows(10, 6, 3)
    [(0, 6), (3, 9), (6, 10)]
    """
    if room < 1 or step < 1:
        raise InvalidOption(f"windows need room for a token and a step of one, not {room} and {step}")
    found = [(0, min(room, count))]
    while found[-1][1] < count:
        start = found[-1][0] + min(room, step)
        found.append((start, min(start + room, count)))
    return found


def most_context(place: int, spans: list[tuple[int, int]]) -> int:
    """The window in which a token has most context on its poorer side; of two such, the longer (BERT, run_squad)."""

    def score(number: int) -> float:
        start, stop = spans[number]
        return min(place - start, stop - 1 - place) + 0.01 * (stop - start)

    holding = [number for number, (start, stop) in enumerate(spans) if start <= place < stop]
    return max(holding, key=lambda number: (score(number), -number))


__all__ = ["Around", "around", "most_context", "windows"]
