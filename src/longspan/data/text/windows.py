"""Split texts that are longer than a model reads into windows, and find the special tokens around each."""

from dataclasses import dataclass

from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidOption


@dataclass(frozen=True)
class Around:
    """The special tokens before, between and after texts, with their segments; and the segments of the texts."""

    before: tuple[list[int], list[int]]
    between: tuple[list[int], list[int]]
    after: tuple[list[int], list[int]]
    segments: tuple[int, int]

    @property
    def size(self) -> int:
        return len(self.before[0]) + len(self.between[0]) + len(self.after[0])


def around(tokenizer: Tokenizer, *, pair: bool) -> Around:
    """The special tokens that a tokenizer puts around a text or a pair, found by encoding a short one."""
    found = tokenizer.encode("a", "a") if pair else tokenizer.encode("a")
    parts: list[tuple[list[int], list[int]]] = [([], [])]
    texts: list[int] = []
    inside = False
    for number, segment, added, offset in zip(found.ids, found.segments, found.added, found.offsets):
        # If no token separates two texts, the second begins where character offsets restart at 0.
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
    """Start and stop of windows of `room` tokens in `count`; `step` is between starts (BERT's doc stride).

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


def most_context(position: int, spans: list[tuple[int, int]]) -> int:
    """The window in which a token has the most context on its shorter side; if equal, the longer (BERT, run_squad)."""

    def score(number: int) -> float:
        start, stop = spans[number]
        return min(position - start, stop - 1 - position) + 0.01 * (stop - start)

    holding = [number for number, (start, stop) in enumerate(spans) if start <= position < stop]
    return max(holding, key=lambda number: (score(number), -number))


__all__ = ["Around", "around", "most_context", "windows"]
