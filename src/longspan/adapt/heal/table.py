"""Teacher, swapped and healed model beside each other: loss, its parts switched off, recall, speed and memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longspan import hub
from longspan.adapt.heal.pair import Pair
from longspan.adapt.heal.parts import only
from longspan.adapt.heal.texts import Texts
from longspan.adapt.measures.copies import copied_from_beyond
from longspan.adapt.measures.decoding import DecodingCost, decoding_cost
from longspan.adapt.measures.loss_by_position import BLOCK, loss_by_position
from longspan.adapt.measures.reach import reach_of
from longspan.adapt.measures.recall import RecallReport, compare_recall
from longspan.adapt.measures.records import to_plain
from longspan.adapt.swap_report import ALIKE, Verdict, judge_linear_part
from longspan.errors import InvalidInput
from longspan.models.base import CausalModel

TRIALS, SECONDS = 20, 300.0


@dataclass(frozen=True)
class Measured:
    """One model; None where a measure does not apply."""

    loss: float  # nats a token; of an encoder, the MSE of its states to the teacher's
    blocks: tuple[float, ...]  # loss by position, in blocks of 64
    window_off: float | None
    linear_off: float | None
    recall: RecallReport | None
    decoding: DecodingCost | None
    copied: float | None = None  # loss of tokens that end a pair last seen beyond the window
    copied_linear_off: float | None = None


@dataclass(frozen=True)
class HealTable:
    """The three models, and the verdict on the linear part of a hybrid."""

    models: dict[str, Measured]
    stage1: float | None  # loss after stage 1
    block: int
    verdict: Verdict | None
    notes: tuple[str, ...]
    copies: int = 0  # tokens of `copied`

    def to_json(self) -> dict[str, Any]:
        """Plain values, for json.dumps."""
        record: dict[str, Any] = to_plain(self)
        return record


def compare(
    pair: Pair,
    folder: Path | str,
    texts: Texts,
    losses: Mapping[str, float],
    *,
    decode_lengths: Sequence[int],
    say: Callable[[str], None],
) -> HealTable:
    """Measures the three models on the held-out texts; the swapped one is read again from its folder."""
    notes: list[str] = []
    if not pair.causal:
        plain = {name: Measured(losses[name], (), None, None, None, None) for name in ("teacher", "swapped", "healed")}
        return HealTable(plain, losses["stage 1"], BLOCK, None, tuple(notes))
    swapped = hub.load(folder, dtype=torch.float32).model
    models: dict[str, Any] = {"teacher": pair.teacher, "swapped": swapped, "healed": pair.student}
    rows = texts.held_out
    reach = reach_of(pair.student)
    recalled: dict[str, RecallReport] = {}
    say("measuring recall")
    try:
        recalled = compare_recall(models, pair.tokenizer, rows, reach=reach, trials=TRIALS, seconds=SECONDS, seed=0)
    except InvalidInput as error:
        notes.append(f"recall was not measured: {error}")
    decoding: dict[str, DecodingCost] = {}
    if decode_lengths:
        say("measuring memory and speed")
        decoding = decoding_cost(models, rows, decode_lengths, seconds=SECONDS)
    notes += _decoding_notes(decoding)
    copies = torch.zeros(len(rows), rows.shape[1] - 1, dtype=torch.bool)
    if reach.window is not None:
        copies = copied_from_beyond(rows, reach.window)
    measured, inside = {}, {}
    for name, model in models.items():
        nats = loss_by_position(model, rows)
        inside[name] = _mean(nats[:, : reach.window])
        window_off, linear_off = _without(model, rows, "linear"), _without(model, rows, "window")
        measured[name] = Measured(
            float(nats.mean()),
            _blocks(nats),
            _mean(window_off),
            _mean(linear_off),
            recalled.get(name),
            decoding.get(name),
            _mean(nats, copies),
            _mean(linear_off, copies),
        )
    if reach.window is not None:
        notes += _learned_text(inside, reach.window)
    if recalled and (cell := recalled["teacher"].beyond_window()) is not None and cell.at_chance:
        notes.append(
            f"the teacher itself recalls {cell.hits} of {cell.count} beyond the window, at chance: "
            "recall cannot judge this model"
        )
    healed = measured["healed"]
    verdict = None
    if healed.linear_off is not None:
        verdict = _judge(healed, healed.linear_off)
    return HealTable(measured, losses["stage 1"], BLOCK, verdict, tuple(notes), int(copies.sum()))


def _judge(healed: Measured, linear_off: float) -> Verdict:
    verdict = judge_linear_part(healed.loss, linear_off, healed.recall)
    if verdict.rise < -ALIKE:  # worse than useless
        said = f"the linear part does harm: the window alone is better by {-verdict.rise:.3f} nats; heal longer"
        return replace(verdict, sentence=said)
    return verdict


def _without(model: CausalModel, rows: Tensor, part: str) -> Tensor | None:
    """The loss by position with only one part of each hybrid; None if there are no hybrids."""
    with only(model, part) as hybrids:
        return loss_by_position(model, rows) if hybrids else None


def _mean(nats: Tensor | None, chosen: Tensor | None = None) -> float | None:
    """The mean loss, of chosen tokens if any; None if there is nothing."""
    if nats is None or (chosen is not None and not chosen.any()):
        return None
    return float((nats if chosen is None else nats[chosen.to(nats.device)]).mean())


def _learned_text(inside: Mapping[str, float | None], window: int) -> list[str]:
    """A note if healing taught the text itself: within a window from the start, swapping a window changes nothing."""
    teacher, healed = inside["teacher"], inside["healed"]
    if teacher is None or healed is None or teacher - healed <= ALIKE:
        return []
    return [
        f"the first {window} tokens, which need nothing from beyond the window, are {teacher - healed:.3f} nats better "
        "than the teacher's: healing also taught this kind of text"
    ]


def _decoding_notes(decoding: Mapping[str, DecodingCost]) -> list[str]:
    return [f"memory and speed of the {name} model: {cost.note}" for name, cost in decoding.items() if cost.note]


def _blocks(nats: Tensor) -> tuple[float, ...]:
    """The mean loss of the tokens 1 to 63, 64 to 127 and so on."""
    borders = [0, *range(BLOCK - 1, nats.shape[1], BLOCK), nats.shape[1]]
    return tuple(float(nats[:, a:b].mean()) for a, b in pairwise(borders) if b > a)


__all__ = ["HealTable", "Measured", "compare"]
