"""Leaks that hide from short samples and from evaluation mode."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from longspan.attention import build
from longspan.attention.base import Shape
from longspan.attention.mechanisms.softmax import SoftmaxAttention
from longspan.audit import Claims, Reading, audit
from longspan.audit.behaviour import padding_amount, padding_content
from longspan.audit.subjects import MechanismSubject
from longspan.audit.targets import subjects_of
from longspan.audit.training import training_padding

WIDTH = 4
READING = Reading(width=WIDTH, length=12, long_length=24)


def failed(module: nn.Module, reading: Reading = READING, **claims: bool) -> set[str]:
    return {finding.check for finding in audit(module, Claims(**claims), reading=reading).failed}


class Sums(nn.Module):
    """A running mean of what is not masked: causal, and it ignores padding."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        keep = torch.ones(x.shape[:2]) if mask is None else mask.to(x.dtype)
        x = x.masked_fill(keep[..., None] == 0, 0.0)
        return x.cumsum(1) / keep.cumsum(1).clamp_min(1.0)[..., None]


class LeakPast(Sums):
    """Reads one position ahead from `begin` on."""

    def __init__(self, begin: int) -> None:
        super().__init__()
        self.begin = begin

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out = super().forward(x, mask)
        ahead = torch.cat([out[:, 1:], out[:, -1:]], dim=1)
        return torch.where((torch.arange(x.shape[1]) >= self.begin)[:, None], ahead, out)


class PaddingPast(Sums):
    """Forgets its mask in long inputs."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask if x.shape[1] <= 128 else None)


def test_the_running_mean_holds_all_claims() -> None:
    assert audit(Sums(), Claims(causal=True, padding=True), reading=READING).passed


@pytest.mark.parametrize("begin", [65, 129, 200, 300])
def test_a_leak_that_begins_late_is_found_by_default(begin: int) -> None:
    caught = failed(LeakPast(begin), Reading(width=WIDTH), causal=True)
    assert caught == {"causal_perturbation", "causal_gradient", "prefix"}


def test_a_leak_that_begins_even_later_is_found_at_a_requested_length() -> None:
    assert failed(LeakPast(500), Reading(width=WIDTH), causal=True) == set()
    assert "causal_perturbation" in failed(LeakPast(500), Reading(width=WIDTH, long_length=600), causal=True)


def test_padding_that_leaks_in_long_inputs_is_found() -> None:
    assert failed(PaddingPast(), Reading(width=WIDTH), padding=True) == {"padding_content"}


def test_a_mechanism_is_measured_past_its_window_and_within_its_table() -> None:
    for options, lengths in (({"window": 5}, (40, 250)), ({"window": 300}, (40, 602))):
        (subject,) = subjects_of(build("window", heads=2, head_dim=4, causal=True, **options))
        assert subject.lengths == lengths
    (subject,) = subjects_of(build("linformer", heads=2, head_dim=4, max_length=64, rank=8))
    assert subject.lengths == (40, 64)
    (subject,) = subjects_of(build("linformer", heads=2, head_dim=4, max_length=32, rank=8))
    assert subject.lengths == (32,)


class LeakInTraining(Sums):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask) + (x.mean(1, keepdim=True) if self.training else 0.0)


class Normalised(Sums):
    """Batch statistics of all positions, in training; running ones in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.normalise = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(self.normalise(x.transpose(1, 2)).transpose(1, 2), mask)


class Averaging(Sums):
    """Divides by a moving average, which it moves only after it was used: nothing leaks within a batch."""

    def __init__(self, always: bool = False) -> None:
        super().__init__()
        self.always = always
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out = super().forward(x, mask) / self.scale
        if self.training or self.always:
            self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().mean()
        return out


def test_leaks_in_training_only_are_found() -> None:
    assert failed(LeakInTraining(), causal=True, padding=True) == {"training_causal", "training_padding"}


class CountsPadding(Sums):
    """In training, reads 0 at masked positions but counts them: what they hold does not matter, their number does."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if not self.training:
            return super().forward(x, mask)
        x = x if mask is None else x.masked_fill(~mask[..., None], 0.0)
        return x.mean(1, keepdim=True) + x.cumsum(1)


def test_padding_that_is_counted_in_training_only_is_found() -> None:
    certificate = audit(CountsPadding(), Claims(padding=True), reading=READING)
    (finding,) = certificate.failed
    assert finding.check == "training_padding"
    assert finding.detail == "worst: 17 masked positions appended to 12"


class MaskOnlyInEvaluation(SoftmaxAttention):
    """Softmax over all keys in training: the base class has set masked ones to 0, so their content does not show."""

    name = "mask_only_in_evaluation"

    def attend(self, q, k, v, extras):
        return super().attend(q, k, v, replace(extras, key_mask=None) if self.training else extras)


def test_a_mechanism_that_ignores_its_mask_in_training_only_is_found() -> None:
    honest, cheat = (kind(Shape(heads=2, head_dim=4)) for kind in (SoftmaxAttention, MaskOnlyInEvaluation))
    assert training_padding(MechanismSubject(honest)).passed
    finding = training_padding(MechanismSubject(cheat))
    assert finding.verdict == "fail" and finding.detail == "worst: 17 masked positions appended to 40"
    assert padding_content(MechanismSubject(cheat)).passed and padding_amount(MechanismSubject(cheat)).passed


def test_batch_statistics_leak_in_training_and_change_later_outputs() -> None:
    assert failed(Normalised(), causal=True, padding=True) == {
        "training_causal",
        "training_padding",
        "running_statistics",
    }


def test_running_statistics_are_found_and_named() -> None:
    certificate = audit(Averaging(), Claims(causal=True), reading=READING)
    (finding,) = certificate.failed
    assert finding.check == "running_statistics"
    assert finding.detail == "a training pass moved scale"


def test_masked_content_may_not_enter_running_statistics() -> None:
    certificate = audit(Averaging(), Claims(padding=True), reading=READING)
    (finding,) = certificate.failed
    assert finding.check == "training_padding"
    assert "the next batch in evaluation mode" in finding.detail


def test_statistics_that_move_in_evaluation_are_no_determinism() -> None:
    certificate = audit(Averaging(always=True), reading=READING)
    assert [finding.check for finding in certificate.failed] == ["batch_invariance", "determinism"]
    assert certificate.failed[1].detail == "changed at once and after another batch and after a short batch"


def test_dropout_is_no_leak() -> None:
    class Dropping(Sums):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(nn.functional.dropout(x, 0.3, self.training), mask)

    certificate = audit(Dropping(), Claims(causal=True, padding=True), reading=READING)
    assert certificate.passed, certificate.table(failed_only=True)


def test_dropout_is_off_even_if_its_random_numbers_depend_on_a_sort() -> None:
    class Sorted(Sums):
        """Drops what it sorted and puts it back, so that the random numbers do not stay with their positions."""

        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.3)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            order = x.argsort(dim=1)
            return super().forward(torch.empty_like(x).scatter(1, order, self.drop(x.gather(1, order))), mask)

    certificate = audit(Sorted(), Claims(causal=True, padding=True), reading=READING)
    assert certificate.passed, certificate.table(failed_only=True)


def test_training_that_cannot_be_repeated_is_not_measured() -> None:
    class Unseeded(Sums):
        generator = torch.Generator()

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            noise = torch.randn(x.shape, generator=Unseeded.generator)
            return super().forward(x + noise if self.training else x, mask)

    certificate = audit(Unseeded(), Claims(causal=True), reading=READING)
    assert certificate.failed == ()
    (finding,) = certificate.not_measured
    assert finding.check == "training_causal" and "the same seed give different outputs" in finding.detail


def test_a_model_without_an_embedding_layer_has_no_gradient_to_measure() -> None:
    class OneHot(nn.Module):
        def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
            return Sums()(nn.functional.one_hot(tokens, 7).float(), mask)

    reading = Reading(kind="tokens", vocabulary=7, length=12, long_length=24)
    certificate = audit(OneHot(), Claims(causal=True, padding=True), reading=reading)
    assert certificate.failed == ()
    (finding,) = certificate.not_measured
    assert finding.check == "causal_gradient" and "to no nn.Embedding" in finding.detail
    (content,) = (finding for finding in certificate.findings if finding.check == "padding_content")
    assert content.passed and "gradients were not measured" in content.detail
