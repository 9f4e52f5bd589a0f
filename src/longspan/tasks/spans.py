"""Windows of questions and passages, and the best answer spans from a model's scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from longspan.data.examples import Example
from longspan.data.text.windows import Around, most_context, windows
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput


@dataclass(frozen=True)
class Passage:
    """A text and its tokens."""

    text: str
    ids: np.ndarray
    offsets: np.ndarray  # (tokens, 2): the first and last + 1 character of each

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer) -> "Passage":
        encoded = tokenizer.encode(text, special=False)
        offsets = np.array(encoded.offsets, dtype=np.int32).reshape(-1, 2)
        return cls(text, np.array(encoded.ids, dtype=np.int32), offsets)

    def cut(self, first: int, last: int) -> str:
        """The text from the first to the last token, as in the passage."""
        return self.text[self.offsets[first, 0] : self.offsets[last, 1]].strip()

    def tokens_of(self, start: int, stop: int) -> tuple[int, int] | None:
        """The first and last token that overlap the characters, or None."""
        inside = (self.offsets[:, 1] > start) & (self.offsets[:, 0] < stop) & (self.offsets[:, 1] > self.offsets[:, 0])
        places = inside.nonzero()[0]
        return (int(places[0]), int(places[-1])) if len(places) else None


def question_windows(
    question: Sequence[int],
    passage: Passage,
    number: int,
    edge: Around,
    *,
    length: int,
    step: int,
    span: tuple[int, int] | None = None,
) -> list[Example]:
    """`[CLS] question [SEP] part of the passage [SEP]` for each window, with the answer's start and end in it.

    If a window lacks part of the answer, its target is the first token. `places` has the passage token at each index
    (-1: none), and `leads` those that may begin an answer, because this window gives them the most context.
    """
    before, between, after = edge.before, edge.between, edge.after
    lead = len(before[0]) + len(question) + len(between[0])
    room = length - lead - len(after[0])
    if room < 1:
        raise InvalidInput(f"a question of {len(question)} tokens leaves no room for its passage in {length}")
    spans = windows(len(passage.ids), room, step)
    best_window = [most_context(token, spans) for token in range(len(passage.ids))]
    examples = []
    for window, (start, stop) in enumerate(spans):
        inside = span is not None and start <= span[0] and span[1] < stop
        target = (span[0] - start + lead, span[1] - start + lead) if span is not None and inside else (0, 0)
        places = [-1] * lead + list(range(start, stop)) + [-1] * len(after[0])
        leads = [token if token >= 0 and best_window[token] == window else -1 for token in places]
        segments = [
            *before[1],
            *[edge.segments[0]] * len(question),
            *between[1],
            *[edge.segments[1]] * (stop - start),
            *after[1],
        ]
        ids = [*before[0], *question, *between[0], *passage.ids[start:stop].tolist(), *after[0]]
        examples.append(
            Example(
                np.array(ids, dtype=np.int32),  # type: ignore[arg-type]
                np.array(segments, dtype=np.int8),  # type: ignore[arg-type]
                {"question": number, "start": target[0], "end": target[1]},
                {
                    "places": np.array(places, dtype=np.int32),  # type: ignore[dict-item]
                    "leads": np.array(leads, dtype=np.int32),  # type: ignore[dict-item]
                },
            )
        )
    return examples


def masked(logits: Tensor, places: Tensor) -> Tensor:
    """Scores (batch, tokens, 2) with -inf outside the passage and the first token, which means "no answer"."""
    allowed = places >= 0
    allowed[:, 0] = True
    return logits.masked_fill(~allowed[..., None], -float("inf"))


def best_spans(
    logits: Tensor, places: Tensor, leads: Tensor, *, keep: int, longest: int
) -> tuple[float, list[tuple[float, int, int]]]:
    """The score of "no answer" in one window (tokens, 2), and the best spans with scores, as tokens of the passage.

    A span begins at one of the `keep` best starts that have the most context here, ends at one of the `keep` best ends,
    and has at most `longest` tokens.
    """
    start, end = logits.double().unbind(-1)
    null = float(start[0] + end[0])
    firsts = [index for index in start.argsort(descending=True, stable=True).tolist() if leads[index] >= 0][:keep]
    lasts = [index for index in end.argsort(descending=True, stable=True).tolist() if places[index] >= 0][:keep]
    spans = [
        (float(start[first] + end[last]), int(places[first]), int(places[last]))
        for first in firsts
        for last in lasts
        if first <= last < first + longest
    ]
    return null, sorted(spans, key=lambda span: (-span[0], span[1:]))[:keep]


__all__ = ["Passage", "best_spans", "masked", "question_windows"]
