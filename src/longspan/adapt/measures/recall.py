"""Recall after a gap: which of ten answers a causal model finds most likely, beside the chance of a guess.

A window of w tokens in L layers cannot carry anything further than L·w tokens, and in practice forgets long before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.adapt.measures.intervals import wilson
from longspan.adapt.measures.loss_by_position import readable_length
from longspan.adapt.measures.reach import Reach, reach_of
from longspan.adapt.measures.recall_prompts import (
    ANSWERS,
    BEFORE,
    Prompt,
    RunningText,
    common_tokens,
    needle_prompts,
    pair_prompt,
)
from longspan.data import Tokenizer
from longspan.errors import InvalidInput
from longspan.models.base import CausalModel

CHANCE = 1 / ANSWERS
GAPS = (0.5, 2.0, 8.0)  # windows
DEPTHS = tuple(tenth / 10 for tenth in range(1, 10))
TRIALS = 20
WITHOUT_WINDOW = 64  # tokens that count as a window where nothing has one
CHUNK = 512
COPIES = 1 << 29  # bytes of states that are read at a time, one for each answer


@dataclass(frozen=True)
class RecallCell:
    """Right answers at one depth or gap."""

    kind: str  # needle, or pairs
    at: float  # the depth as a share of the text, or the gap in windows
    distance: int  # tokens
    hits: int
    count: int  # 0: not measured
    low: float  # Wilson's interval of 95 %
    high: float
    place: str  # in the window, beyond the window, beyond the receptive field
    note: str = ""  # why it was not measured

    @property
    def share(self) -> float:
        return self.hits / self.count if self.count else 0.0

    @property
    def at_chance(self) -> bool:
        """Whether a guess explains it: the interval reaches down to the chance."""
        return self.low <= CHANCE


@dataclass(frozen=True)
class RecallReport:
    """The recall of one model; `window` and `field` are the borders of the swapped one, in tokens."""

    chance: float
    window: int | None
    field: int | None  # layers · window; None: no border
    cells: tuple[RecallCell, ...]
    note: str = ""

    def beyond_window(self, kind: str | None = None) -> RecallCell | None:
        """All cells beyond the window together; None if none was measured."""
        cells = [c for c in self.cells if c.count and c.place != IN_WINDOW and kind in (None, c.kind)]
        if not cells:
            return None
        hits, count = sum(c.hits for c in cells), sum(c.count for c in cells)
        return RecallCell(
            kind or "all", 0.0, min(c.distance for c in cells), hits, count, *wilson(hits, count), BEYOND_WINDOW
        )


IN_WINDOW, BEYOND_WINDOW, BEYOND_FIELD = "in the window", "beyond the window", "beyond the receptive field"


def recall(
    model: CausalModel,
    tokenizer: Tokenizer | None,
    rows: Tensor,
    *,
    reach: Reach | None = None,
    gaps: Sequence[float] = GAPS,
    depths: Sequence[float] = DEPTHS,
    needle_length: int | None = None,
    trials: int = TRIALS,
    seconds: float | None = None,
    seed: int = 0,
) -> RecallReport:
    """The recall of one model (see `compare_recall`)."""
    return compare_recall(
        {"model": model},
        tokenizer,
        rows,
        reach=reach_of(model) if reach is None else reach,
        gaps=gaps,
        depths=depths,
        needle_length=needle_length,
        trials=trials,
        seconds=seconds,
        seed=seed,
    )["model"]


@torch.inference_mode()
def compare_recall(
    models: dict[str, CausalModel],
    tokenizer: Tokenizer | None,
    rows: Tensor,
    *,
    reach: Reach,
    gaps: Sequence[float] = GAPS,
    depths: Sequence[float] = DEPTHS,
    needle_length: int | None = None,
    trials: int = TRIALS,
    seconds: float | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, RecallReport]:
    """The recall of several models on the same prompts, in `trials` rounds of every depth and gap.

    A needle text has `needle_length` tokens: the length of the rows unless given. Rounds end after `seconds`. Without a
    tokenizer there are pairs only.
    """
    generator = torch.Generator().manual_seed(seed)
    text, window = RunningText(rows), reach.window or WITHOUT_WINDOW
    special = [] if tokenizer is None else list(tokenizer.specials.values())
    tokens, limits = common_tokens(rows, special), [readable_length(model) for model in models.values()]
    limit = min((each for each in limits if each is not None), default=None)
    length = needle_length or rows.shape[1]
    length = length if limit is None else min(length, limit - 8)
    distances = {gap: max(2, round(gap * window)) for gap in gaps}
    longest = {gap: distance + BEFORE + reach.sinks + 2 * ANSWERS for gap, distance in distances.items()}
    fitting = [gap for gap in gaps if limit is None or longest[gap] <= limit]
    tally: dict[str, dict[tuple[str, float], list[int]]] = {name: {} for name in models}
    spans: dict[tuple[str, float], int] = {("pairs", gap): distance for gap, distance in distances.items()}
    note = "" if tokenizer is not None else "no needle: there is no tokenizer to write it with"
    began, rounds = time.monotonic(), 0
    while rounds < trials and (rounds == 0 or seconds is None or time.monotonic() - began < seconds):
        asked: list[tuple[tuple[str, float], Prompt]] = []
        if tokenizer is not None and not note:
            try:
                prompts = needle_prompts(tokenizer, text, depths, length, generator)
                asked += [(("needle", depth), prompt) for depth, prompt in zip(depths, prompts)]
            except InvalidInput as error:
                note = f"no needle: {error}"
        asked += [
            (("pairs", gap), pair_prompt(text, tokens, distances[gap], reach.sinks, generator)) for gap in fitting
        ]
        for key, prompt in asked:
            spans[key] = prompt.distance
            for name, model in models.items():
                tally[name].setdefault(key, []).append(int(best_answer(model, prompt) == prompt.right))
        rounds += 1
        progress(f"recall, round {rounds} of {trials}")
    if rounds < trials:
        note = "; ".join(part for part in (note, f"{rounds} of {trials} rounds in {seconds:g} s") if part)
    return {
        name: RecallReport(
            CHANCE,
            reach.window,
            reach.field,
            tuple(_cell(key, spans[key], hits.get(key, []), reach, window, limit) for key in sorted(spans)),
            note,
        )
        for name, hits in tally.items()
    }


def _cell(
    key: tuple[str, float], distance: int, hits: list[int], reach: Reach, window: int, limit: int | None
) -> RecallCell:
    place = IN_WINDOW if distance <= window else BEYOND_WINDOW
    if reach.field is not None and distance > reach.field:
        place = BEYOND_FIELD
    note = "" if hits else f"longer than the {limit} positions"
    return RecallCell(*key, distance, sum(hits), len(hits), *wilson(sum(hits), len(hits)), place, note)


def best_answer(model: CausalModel, prompt: Prompt) -> int:
    """The answer with the highest log-likelihood after the prompt."""
    state, logits = model.start(1), None
    for chunk in prompt.ids.to(model.device)[None].split(CHUNK, 1):
        logits, state = model.extend(chunk, state, last=True, beyond=True)
    assert logits is not None
    answers = prompt.answers.to(model.device)
    scores = logits[0, -1].double().log_softmax(-1)[answers[:, 0]]
    if answers.shape[1] == 1:
        return int(scores.argmax())
    for some in torch.arange(ANSWERS).split(max(1, min(ANSWERS, COPIES // max(1, state.bytes)))):
        rows = torch.zeros(len(some), dtype=torch.long, device=model.device)
        following, _ = model.extend(answers[some, :-1], state.select(rows), beyond=True)
        each = following.double().log_softmax(-1).gather(2, answers[some, 1:, None])
        scores[some] += each.sum((1, 2))
    return int(scores.argmax())


__all__ = [
    "BEYOND_FIELD",
    "BEYOND_WINDOW",
    "CHANCE",
    "IN_WINDOW",
    "RecallCell",
    "RecallReport",
    "best_answer",
    "compare_recall",
    "recall",
]
