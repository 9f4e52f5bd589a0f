"""What a swap of the attention cost: a model with its attention swapped beside the original, on the same texts.

`measure_swap` is the measurement behind `longspan swap`; `longspan heal` uses its parts (`loss_by_position`, `recall`,
`decoding_cost`) and `judge_linear_part`. `longspan.report.swap` draws the page.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from longspan.adapt.measures.decoding import LENGTHS, DecodingCost, decoding_cost
from longspan.adapt.measures.encoding import EncoderPoint, compare_encoders
from longspan.adapt.measures.layer_error import LayerError, layer_errors
from longspan.adapt.measures.loss_by_position import (
    LossComparison,
    compare_losses,
    joined_rows,
    loss_by_position,
)
from longspan.adapt.measures.reach import Reach, reach_of
from longspan.adapt.measures.recall import RecallReport, compare_recall, recall
from longspan.adapt.measures.records import from_plain, to_plain
from longspan.errors import InvalidInput
from longspan.hub.pretrained import Pretrained
from longspan.models.base import CausalModel, EncoderDecoder

LAYER_TEXTS = 8  # texts whose maps are compared
BEYOND = 2  # times the trained length that texts are joined to
ALIKE = 0.02  # nats
SECONDS = 300.0  # for recall, and for decoding
NOT_USED = "the linear part is not used; the window alone (untrained, cheaper) does the same"


@dataclass(frozen=True)
class SwapReport:
    """Every number of the comparison; None where a measure does not apply."""

    original: str  # where it came from
    swapped: str
    kind: str  # of the model
    texts: int
    length: int
    layers: tuple[LayerError, ...]
    reach: Reach  # of the swapped model
    loss: LossComparison | None  # causal models
    beyond: LossComparison | None  # texts joined past the trained length
    recall: dict[str, RecallReport] | None  # by "original" and "swapped"
    decoding: dict[str, DecodingCost] | None
    encoder: tuple[EncoderPoint, ...]  # encoders
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The result in one or two sentences."""
        return " ".join([*_loss_sentence(self), *_encoder_sentence(self), *_layer_sentence(self)])

    def to_json(self) -> dict[str, Any]:
        """Plain values, for json.dumps."""
        record: dict[str, Any] = to_plain(self)
        return {**record, "sentence": self.sentence}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The report that `to_json` wrote."""
        return from_plain(cls, {key: value for key, value in record.items() if key != "sentence"})


@dataclass(frozen=True)
class Verdict:
    """Whether the linear part of a hybrid does anything."""

    used: bool | None  # None: without recall nobody knows
    rise: float  # nats that the loss rises without it
    recall_at_chance: bool | None  # beyond the window; None: not measured
    sentence: str


def judge_linear_part(whole: float, linear_off: float, recalled: RecallReport | None) -> Verdict:
    """The verdict on a hybrid from its loss, its loss with the linear part off, and its recall.

    >>> judge_linear_part(1.345, 1.372, recall(model, tokenizer, rows)).sentence
    """
    rise = linear_off - whole
    beyond = None if recalled is None else recalled.beyond_window()
    at_chance = None if beyond is None else beyond.at_chance
    if abs(rise) <= ALIKE and at_chance:
        return Verdict(False, rise, at_chance, NOT_USED)
    if abs(rise) <= ALIKE and beyond is None:
        said = "the loss is the same without the linear part, and recall beyond the window was not measured"
        return Verdict(None, rise, None, said)
    if abs(rise) <= ALIKE and beyond is not None:
        said = f"the linear part is used for recall: {beyond.share:.0%} beyond the window, chance 10 %"
    else:
        said = f"the linear part is used: without it the loss changes by {rise:+.3f} nats"
    return Verdict(True, rise, at_chance, said)


def measure_swap(
    original: Pretrained,
    swapped: Pretrained,
    token_rows: Tensor,
    *,
    progress: Callable[[str], None] | None = None,
    decode_lengths: Sequence[int] = LENGTHS,
    trials: int = 20,
    seconds: float = SECONDS,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> SwapReport:
    """Measure a swapped model beside the original on `token_rows` (texts, length), held-out text.

    Recall stops after `seconds` with the rounds it has, and decoding leaves out lengths that would take longer. Without
    `decode_lengths` decoding is not measured. `progress` gets a line before each step; `notes` stand in the report.
    """
    say = progress or (lambda what: None)
    before, after = original.model, swapped.model
    _check(original, swapped, token_rows)
    layers = layer_errors(before, after, token_rows[:LAYER_TEXTS], progress=say)
    reach, said = reach_of(after), [*notes]
    loss, beyond, recalled, decoding, encoder = None, None, None, None, tuple[EncoderPoint, ...]()
    if isinstance(before, CausalModel) and isinstance(after, CausalModel):
        say("loss by position")
        loss = compare_losses(before, after, token_rows, seed=seed)
        say("loss beyond the trained length")
        beyond = _beyond(before, after, token_rows, seed, said)
        tokenizer = original.tokenizer or swapped.tokenizer
        both = {"original": before, "swapped": after}
        try:
            recalled = compare_recall(
                both, tokenizer, token_rows, reach=reach, trials=trials, seconds=seconds, seed=seed, progress=say
            )
        except InvalidInput as error:
            said.append(f"recall was not measured: {error}")
        if decode_lengths:
            decoding = decoding_cost(both, token_rows, decode_lengths, seconds=seconds, progress=say)
    else:
        encoder = compare_encoders(original, swapped, token_rows, seed=seed, progress=say)
    return SwapReport(
        original=_name(original),
        swapped=_name(swapped),
        kind=after.name,
        texts=len(token_rows),
        length=token_rows.shape[1],
        layers=layers,
        reach=reach,
        loss=loss,
        beyond=beyond,
        recall=recalled,
        decoding=decoding,
        encoder=encoder,
        notes=tuple(said),
    )


def not_measurable(original: Pretrained) -> str | None:
    """Why a swap of this model cannot be measured on text; None if it can."""
    model = original.model
    if isinstance(model, EncoderDecoder):
        return "an encoder–decoder reads a source, and the report compares encoders and decoders"
    if model.token_rows is None:
        return "the model reads no text"
    if original.tokenizer is None:
        return "the model has no tokenizer to read a text with"
    return None


def _check(original: Pretrained, swapped: Pretrained, rows: Tensor) -> None:
    if rows.dim() != 2 or not len(rows) or rows.shape[1] < 2 or rows.dtype.is_floating_point:
        raise InvalidInput(
            f"token rows must be whole numbers (texts, length of 2 or more), not {rows.dtype} {tuple(rows.shape)}"
        )
    for model in (original.model, swapped.model):
        if isinstance(model, EncoderDecoder):
            raise InvalidInput(f"a swap is measured on encoders and causal models; {model.name} reads a source")
        if model.token_rows is not None and int(rows.max()) >= model.token_rows:
            raise InvalidInput(
                f"the text has token {int(rows.max())}, and the model has {model.token_rows} tokens; "
                "use the tokenizer of the model"
            )
    if isinstance(original.model, CausalModel) != isinstance(swapped.model, CausalModel):
        raise InvalidInput("one model is causal and the other is not: compare a model with its own swap")


def _beyond(
    original: CausalModel, swapped: CausalModel, rows: Tensor, seed: int, notes: list[str]
) -> LossComparison | None:
    """The loss on texts joined past the trained length."""
    trained = original.max_length
    if trained is None or rows.shape[1] > trained:
        return None  # `loss` has it already
    if swapped.fixed_length and swapped.max_length is not None and swapped.max_length <= trained:
        notes.append(f"positions end at {swapped.max_length}, so there is no loss beyond it")
        return None
    longer = joined_rows(rows, BEYOND * trained)
    if longer is None:
        notes.append(f"too little text for the loss beyond {trained} tokens: give {BEYOND * trained} tokens or more")
        return None
    return compare_losses(original, swapped, longer, seed=seed)


def _name(pretrained: Pretrained) -> str:
    return pretrained.model.name if pretrained.path is None else str(pretrained.path)


def _loss_sentence(report: SwapReport) -> list[str]:
    loss = report.loss
    if loss is None or loss.original is None or loss.difference is None:
        return []
    said = f"The loss goes from {loss.original:.3f} to {loss.swapped:.3f} nats a token ({loss.difference.mean:+.3f}"
    if loss.difference.low is not None and loss.difference.high is not None:
        said += f", 95 % interval {loss.difference.low:+.3f} to {loss.difference.high:+.3f}"
    sentences = [said + ")."]
    swapped = report.recall["swapped"].beyond_window() if report.recall else None
    original = report.recall["original"].beyond_window() if report.recall else None
    if swapped is not None and original is not None:
        at = " (at chance)" if swapped.at_chance else ""
        said = (
            f"Beyond the window it recalls {swapped.share:.0%}{at}, the original {original.share:.0%}; a guess is 10%"
        )
        if original.at_chance:
            said += ", so the original cannot do this test and it says nothing about the swap"
        sentences.append(said + ".")
    return sentences


def _encoder_sentence(report: SwapReport) -> list[str]:
    return [
        f"At {point.length} tokens sentence vectors have a mean cosine of {point.cosine.mean:.4f} to {point.against}."
        for point in report.encoder
        if point.cosine is not None
    ]


def _layer_sentence(report: SwapReport) -> list[str]:
    changed = [layer for layer in report.layers if layer.swapped]
    if not changed:
        return ["No layer was swapped."]
    worst = max(changed, key=lambda layer: layer.forced_output)
    errs = f"layer {worst.layer} errs most by itself ({worst.forced_output:.1%} of its output)"
    if worst.forced_output == 0:
        errs = "none of them errs"
    return [f"{len(changed)} of {len(report.layers)} layers were swapped; {errs}."]


__all__ = [
    "NOT_USED",
    "SwapReport",
    "Verdict",
    "decoding_cost",
    "judge_linear_part",
    "loss_by_position",
    "measure_swap",
    "not_measurable",
    "recall",
]
