"""The suite that checks the suite: faults sown on purpose, each caught by the check that is there for it.

The clean mechanism passes everything, so what a check reports is the fault and nothing else.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from plain_window import PlainState, PlainWindow
from torch import Tensor
from torch.nn.functional import dropout, pad

from longspan.attention.base import Cost, Extras
from longspan.attention.mechanisms.softmax import SoftmaxAttention
from longspan.audit.certificate import audit
from longspan.audit.checks import CHECKS, applicable
from longspan.audit.subjects import MechanismSubject

FAULTS: list[Any] = []
SLOW = {"compile", "compile_masked", "export", "export_masked", "size", "exponent"}  # a second or more each


@dataclass(frozen=True)
class Fault:
    mechanism: type
    caught_by: str
    missed_by: str | None
    causal: bool
    options: dict[str, Any]


def fault(caught_by: str, *, missed_by: str | None = None, causal: bool = True, **options: Any) -> Any:
    """Enters a mechanism in the list; `missed_by` is a check that must not see it, so that both are shown needed."""

    def enter(mechanism: type) -> type:
        item = Fault(mechanism, caught_by, missed_by, causal, options)
        marks = [pytest.mark.slow] if {caught_by, missed_by} & SLOW else []
        FAULTS.append(pytest.param(item, id=f"{mechanism.__name__}-{caught_by}", marks=marks))
        return mechanism

    return enter


def subject_of(mechanism: type, *, causal: bool, options: dict[str, Any] | None = None) -> MechanismSubject:
    return MechanismSubject.build(mechanism, causal=causal, options=options or {}, form="")


@pytest.mark.slow
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_the_clean_mechanism_passes_everything(causal: bool) -> None:
    certificate = audit(subject_of(PlainWindow, causal=causal))
    assert certificate.passed, certificate.table(failed_only=True)


@pytest.mark.parametrize("item", FAULTS)
def test_fault_is_caught(item: Fault) -> None:
    subject = subject_of(item.mechanism, causal=item.causal, options=item.options)
    checks = {check.name: check for check in applicable(subject)}

    def passes(name: str) -> bool:
        try:
            return checks[name](subject).passed
        except Exception:
            return False  # as in an audit, which turns it into a failed finding

    assert not passes(item.caught_by)
    assert item.missed_by is None or passes(item.missed_by)


def test_every_check_has_a_fault_that_only_a_working_check_finds() -> None:
    """A check that no fault tries could be empty, and nobody would know. tests/audit try `order` and packing."""
    tried = {item.values[0].caught_by for item in FAULTS}
    assert tried == {check.name for check in CHECKS if not check.name.startswith("packing_")} - {"order"}


# The wrong result


@fault("oracle")
@fault("oracle", causal=False)
class WindowOffByOne(PlainWindow):
    @property
    def reach(self) -> int:
        return self.options.window - 1


@fault("oracle")
@fault("weights", missed_by="prefix")
class ScaleMissing(PlainWindow):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) * self.shape.head_dim**0.5


@fault("oracle_gradients", missed_by="oracle")
class DetachedGradient(PlainWindow):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k.detach())


# Padding


class Unprotected(PlainWindow):
    """Sees what masked keys hold. The base class sets them to 0, which would hide the faults below."""

    def _take(self, q: Tensor, k: Tensor, v: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor, Extras]:
        return q, k, v, self._check(q, k, v, *given)


@fault("oracle")
class MaskIgnoredBehindTheBase(PlainWindow):
    """The base class makes masked keys 0, but a key of 0 is still read."""

    def readable(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().readable(q, None)


@fault("padding_content")
@fault("padding_content", causal=False)
class MaskIgnored(Unprotected):
    def readable(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().readable(q, None)


@fault("padding_content")
class MaskInverted(Unprotected):
    def readable(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().readable(q, None if key_mask is None else ~key_mask)


@fault("padding_amount", missed_by="padding_content", causal=False)
class MeanOverPaddedLength(PlainWindow):
    """What is masked is left out of the sum but not out of the count."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        kept = v if extras.key_mask is None else v * extras.key_mask[:, None, :, None]
        return super().attend(q, k, v, extras) + kept.mean(dim=2, keepdim=True)


@fault("dead_rows")
class NotANumberOnDeadRows(PlainWindow):
    def normalise(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(~keep, float("-inf")).softmax(dim=-1)


@fault("dead_rows")
class UniformOnDeadRows(Unprotected):
    """The usual large finite penalty: a row with nothing to read averages what is masked."""

    def normalise(self, scores: Tensor, keep: Tensor) -> Tensor:
        return scores.masked_fill(~keep, -1e4).softmax(dim=-1)


# Causality


@fault("causal_perturbation", missed_by="causal_gradient")
class LeakThroughArgmax(PlainWindow):
    """An integer decision has no gradient, so only fresh noise shows that the future takes part in it."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        largest = k.square().sum(dim=-1).argmax(dim=-1)[:, :, None, None]
        return super().attend(q, k, v, extras) * (1 + 0.1 * (largest % 2))


@fault("causal_gradient", missed_by="causal_perturbation")
class LeakBelowRounding(PlainWindow):
    """Too small to be seen in the output, and still a path from the future to the loss."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        return super().attend(q, k, v, extras) + 1e-25 * v.sum(dim=2, keepdim=True)


@fault("causal_perturbation")
class SequenceMaximum(PlainWindow):
    """One stabiliser for the whole sequence and a small constant below: large keys of the future drown the past."""

    def normalise(self, scores: Tensor, keep: Tensor) -> Tensor:
        scores = scores.masked_fill(~keep, float("-inf"))
        powers = (scores - scores.amax(dim=(2, 3), keepdim=True).clamp_min(0.0).detach()).exp()
        return powers / (powers.sum(dim=-1, keepdim=True) + 1e-6)


@fault("causal_perturbation")
class OneAhead(PlainWindow):
    def near(self, x: Tensor) -> Tensor:
        return pad(x, (0, 0, self.reach, 1)).unfold(2, self.reach + 2, 1)


@fault("prefix", missed_by="causal_perturbation")
class AnchoredAtTheEnd(PlainWindow):
    """Padding on the left to fill blocks moves their borders as the text grows."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        from_end = torch.arange(q.shape[2], 0, -1)[:, None]
        return super().attend(q, k, v, extras) * (1 + 0.1 * (from_end % 3))


@fault("causal_perturbation")
@fault("causal_gradient")
@fault("prefix")
class LeakInLongInputs(PlainWindow):
    """Right up to the length of a block, as a kernel may be that was tried on short inputs only."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        out = super().attend(q, k, v, extras)
        return torch.cat([out[:, :, :128], out[:, :, 128:].flip(2)], dim=2)


# Training mode


@fault("training_causal", missed_by="causal_perturbation")
class LeakInTraining(PlainWindow):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        return super().attend(q, k, v, extras) + (v.mean(dim=2, keepdim=True) if self.training else 0.0)


@fault("training_padding", missed_by="padding_content")
class MaskIgnoredInTraining(Unprotected):
    def readable(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().readable(q, None if self.training else key_mask)


class MovingAverage(PlainWindow):
    """Divides by a moving average of the keys, as it was before the pass."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.register_buffer("size", torch.ones(()))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        out = super().attend(q, k, v, extras) / self.size
        if self.training:
            self.size = self.size.lerp(k.detach().square().mean(), 0.1)
        return out


@fault("running_statistics", missed_by="training_causal")
class UndeclaredStatistics(MovingAverage):
    pass


@fault("training_padding", missed_by="padding_content")
class StatisticsOfPadding(MovingAverage, Unprotected):
    """May move its buffers, but not by what is masked."""

    running_statistics = True


# Streaming


@fault("streaming", missed_by="prefix")
class StateOneShort(PlainWindow):
    @property
    def remembered(self) -> int:
        return self.options.window - 1


@fault("streaming")
class StateMutated(PlainWindow):
    """The old state is changed by being continued, so a prompt can be continued only once."""

    def extend_heads(
        self, q: Tensor, k: Tensor, v: Tensor, state: PlainState, extras: Extras
    ) -> tuple[Tensor, PlainState]:
        out, new = super().extend_heads(q, k, v, state, extras)
        for name in ("k", "v", "seen"):
            object.__setattr__(state, name, getattr(new, name))
        return out, new


@fault("streaming_masked", missed_by="streaming")
class StateForgetsMask(PlainWindow):
    def extend_heads(
        self, q: Tensor, k: Tensor, v: Tensor, state: PlainState, extras: Extras
    ) -> tuple[Tensor, PlainState]:
        out, new = super().extend_heads(q, k, v, state, extras)
        return out, replace(new, seen=torch.ones_like(new.seen))


@fault("streaming_side_inputs", missed_by="streaming")
class DecodingWithoutBias(SoftmaxAttention):
    def extend_heads(self, q: Tensor, k: Tensor, v: Tensor, state: Any, extras: Extras) -> Any:
        return super().extend_heads(q, k, v, state, replace(extras, bias=None))


# The batch, and chance


@fault("batch_invariance")
class BatchMaximum(PlainWindow):
    def normalise(self, scores: Tensor, keep: Tensor) -> Tensor:
        scores = scores.masked_fill(~keep, float("-inf"))
        powers = (scores - scores.amax().clamp_min(0.0).detach()).exp()
        return powers / (powers.sum(dim=-1, keepdim=True) + 1e-6)


@fault("determinism")
class Random(PlainWindow):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        return super().attend(q, k, v, extras) + 1e-14 * torch.randn_like(q)


@fault("determinism")
class RemembersAShortBatch(PlainWindow):
    """As Hugging Face's BigBird does: one short input changes the mechanism for good."""

    factor = 1.0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        if q.shape[2] < 10:
            self.factor = 1.1
        return super().attend(q, k, v, extras) * self.factor


@fault("dropout")
class DropoutWithoutRescaling(PlainWindow):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        return super().attend(q, k, v, extras) * (1 - self.dropout if self.training else 1)


@fault("dropout")
class DropoutInEvaluation(PlainWindow):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        return dropout(super().attend(q, k, v, extras), self.dropout)


@fault("save_load")
class UnsavedRandomNumbers(PlainWindow):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.turn = torch.randn(())

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        return super().attend(q, k, v, extras) * self.turn


# Lengths, precision, tools


@fault("lengths")
class OnlyWholeBlocks(PlainWindow):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        assert q.shape[2] % 4 == 0
        return super().attend(q, k, v, extras)


@fault("half_precision", missed_by="oracle")
class Overflow(PlainWindow):
    """Right in exact arithmetic; in float16 the products pass 65504."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q * 60, k * 60) / 3600


@fault("compile")
class GraphBreak(PlainWindow):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        return super().attend(q, k, v, extras) if q.abs().max().item() > 0 else q


@fault("compile")
class CompiledAtOneLengthOnly(PlainWindow):
    """Captured whole unless the length is a multiple of the block."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        if q.shape[2] % 4 == 0 and q.abs().max().item() < 0:
            return q
        return super().attend(q, k, v, extras)


@fault("compile_masked", missed_by="compile")
class GraphBreakWithMask(PlainWindow):
    def readable(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().readable(q, None if key_mask is None or key_mask.all().item() else key_mask)


@fault("export", missed_by="compile")
class OneLengthOnly(PlainWindow):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        rows = torch.stack([q[:, :, i] for i in range(q.shape[2])], dim=2)
        return super().attend(rows, k, v, extras)


@fault("export_masked", missed_by="export")
class OneLengthOnlyWithMask(PlainWindow):
    def readable(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        if key_mask is not None:
            key_mask = torch.stack([key_mask[:, i] for i in range(key_mask.shape[1])], dim=1)
        return super().readable(q, key_mask)


# Cost


@fault("cost", missed_by="exponent")
class FlopsMisdeclared(PlainWindow):
    def cost(self, queries: int, keys: int) -> Cost:
        return super().cost(queries, keys)._replace(flops=super().cost(queries, keys).flops + 1)


@fault("cost")
class FloatsMisdeclared(PlainWindow):
    def cost(self, queries: int, keys: int) -> Cost:
        return super().cost(queries, keys)._replace(floats=super().cost(queries, keys).floats - 1)


@fault("exponent", missed_by="cost")
class OrderMisdeclared(PlainWindow):
    exponent = 1.5


@fault("size", missed_by="oracle")
@fault("exponent")
@fault("cost")
class HiddenQuadratic(PlainWindow):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        return dropout(self.define(q, k, extras), self.dropout, self.training) @ v


@fault("size", missed_by="exponent")
class QuadraticMask(PlainWindow):
    """No matrix product grows, but the memory does."""

    def readable(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        length = q.shape[2]
        if key_mask is not None:
            key_mask = (key_mask[:, None, :] & torch.ones(length, 1, dtype=torch.bool)).any(dim=1)
        return super().readable(q, key_mask)


@fault("refusals")
class NothingRefused(PlainWindow):
    def _check(self, q: Any, k: Any, v: Any, key_mask: Any, bias: Any, streams: Any) -> Extras:
        return Extras(key_mask, bias, streams or {})
