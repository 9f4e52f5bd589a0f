"""The same claims in training mode, with batch statistics, noise and moving averages."""

import itertools
import random

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from longspan.audit.behaviour import NO_EFFECT, Attempts, cut_points, masks
from longspan.audit.claims import Claims
from longspan.audit.finding import Measurement, NotMeasured, Worst, check, difference, spread
from longspan.audit.subjects import AuditSubject, Sample, append, cut

PADDED = (1, 5, 17)  # masked positions that are appended


@check("in training mode, masked positions change no other output", lambda claims: claims.padding)
def training_padding(subject: AuditSubject) -> Measurement:
    """Neither what masked positions hold, nor how many there are.

    The number matters because longspan sets masked keys and values to 0 before a mechanism reads them: one that ignores
    the mask would still give the same output for any content, but not for another number of zeros.
    """
    subject, worst = _without_dropout(subject), Worst()
    sample, moved = subject.sample(2, subject.length, seed=0), 0.0
    later = subject.sample(2, subject.length, seed=1)
    for name, mask in masks(2, subject.length).items():
        expected, expected_later = _repeatable(subject, sample, mask, later)
        scale = spread(expected[mask])
        for size in subject.scales[-2:]:
            output, output_later = _train(subject, subject.replace(sample, ~mask, 100, size), mask, later)
            worst.see(difference(output[mask], expected[mask], scale), f"{name}, noise of size {size:g}")
            gap = difference(output_later, expected_later, spread(expected_later))
            worst.see(gap, f"the next batch in evaluation mode, after {name} with noise of size {size:g}")
        visible, _ = _train(subject, subject.replace(sample, mask, 100), mask, later)
        moved = max(moved, difference(visible[mask], expected[mask], scale))
    if moved <= subject.same:
        raise NotMeasured(NO_EFFECT)
    note = _compare_padded(subject, sample, worst)
    return worst.against(subject.same, detail=note)


def _compare_padded(subject: AuditSubject, sample: Sample, worst: Worst) -> str:
    """Compares outputs with those after masked positions were appended; returns a note if that was not possible.

    A module that draws random numbers in training may draw others for another length: then a difference shows nothing.
    """
    length, more = subject.length, subject.sample(2, max(PADDED), seed=1)
    attempts = Attempts(subject, run=lambda sample, mask: _train(subject, sample, mask)[0])
    expected = attempts.run(sample)
    if expected is None:
        return attempts.note
    other_seed, _ = _train(subject, sample, seed=1)
    if difference(other_seed, expected, spread(expected)) > subject.same:
        return "the number of masked positions was not varied, as outputs depend on random numbers in training"
    for count in PADDED:
        mask = torch.arange(length + count).expand(2, -1) < length
        padded = attempts.run(append(sample, cut(more, 0, count)), mask)
        if padded is not None:
            gap = difference(padded[:, :length], expected, spread(expected))
            if gap > subject.near:  # two ways to compute one thing: below this it is rounding
                worst.see(gap, f"{count} masked positions appended to {length}")
    return attempts.note


@check("in training mode, later inputs change no earlier output", lambda claims: claims.causal)
def training_causal(subject: AuditSubject) -> Measurement:
    subject, worst, moved = _without_dropout(subject), Worst(), 0.0
    length = subject.length
    sample, position = subject.sample(2, length, seed=0), torch.arange(length).expand(2, length)
    expected, _ = _repeatable(subject, sample)
    scale = spread(expected)
    for last, size in itertools.product(cut_points(length), subject.scales[-2:]):
        output, _ = _train(subject, subject.replace(sample, position > last, 100, size))
        kept = difference(output[:, : last + 1], expected[:, : last + 1], scale)
        worst.see(kept, f"inputs after {last}, noise of size {size:g}")
        moved = max(moved, difference(output[:, last + 1 :], expected[:, last + 1 :], scale))
    if moved <= subject.same:
        raise NotMeasured(NO_EFFECT)
    return worst.against(subject.same, detail=subject.causal_hint if worst.value > subject.same else "")


def _keeps_no_statistics(claims: Claims) -> bool:
    return claims.stateless if claims.contract else claims.causal


@check("a pass in training mode changes no later output", _keeps_no_statistics)
def running_statistics(subject: AuditSubject) -> Measurement:
    later = subject.sample(2, subject.length, seed=1)
    with torch.no_grad():
        before = subject.run(later)
    _, after = _train(subject, subject.sample(2, subject.length, seed=0), later=later)
    gap = difference(after, before, spread(before))
    buffers = _moved_buffers(subject) if gap else ""
    return Measurement(gap, 0.0, detail=f"a training pass moved {buffers}" if buffers else "")


def _moved_buffers(subject: AuditSubject) -> str:
    copy = subject.fresh()
    before = {name: buffer.clone() for name, buffer in copy.module.named_buffers()}
    copy.module.train()
    with torch.no_grad():
        copy.run(copy.sample(2, copy.length, seed=0))
    moved = [name for name, buffer in copy.module.named_buffers() if not torch.equal(buffer, before.get(name, buffer))]
    return ", ".join(moved[:4]) + (", …" if len(moved) > 4 else "")


def _without_dropout(subject: AuditSubject) -> AuditSubject:
    """A copy without dropout, if that can be set.

    A fixed seed is not enough: where the layout of a tensor depends on the input, as in sorted or clustered attention,
    the same random numbers fall on other positions.
    """
    copy = subject.fresh()
    for module in copy.module.modules():
        for name, value in list(vars(module).items()):
            is_rate = name == "p" if isinstance(module, _DropoutNd) else "dropout" in name
            if is_rate and isinstance(value, float):
                setattr(module, name, 0.0)
    return copy


def _repeatable(
    subject: AuditSubject, sample: Sample, mask: Tensor | None = None, later: Sample | None = None
) -> tuple[Tensor, Tensor]:
    """As `_train`, if a second call gives the same."""
    first, again = _train(subject, sample, mask, later), _train(subject, sample, mask, later)
    if difference(again[0], first[0], spread(first[0])) > subject.same:
        raise NotMeasured("in training mode, the same input and the same seed give different outputs")
    return first


def _train(
    subject: AuditSubject, sample: Sample, mask: Tensor | None = None, later: Sample | None = None, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """The output of one pass in training mode, and the output for `later` afterwards, in evaluation mode.

    The module is a copy and the seed is fixed, so that two calls differ by their input only.
    """
    copy, state = subject.fresh(), random.getstate()
    copy.module.train()
    try:
        torch.manual_seed(seed)
        random.seed(seed)
        with torch.no_grad():
            out = copy.run(sample, mask)
            copy.module.eval()
            return out, out if later is None else copy.run(later)
    finally:
        random.setstate(state)
