"""What a target is, how it is called, and what is said when it cannot be."""

from pathlib import Path

import pytest
import torch
from other_models import WIDTH, DropMaskLayer, Layer, Mixer
from torch import Tensor, nn

from longspan.attention import build
from longspan.attention.mechanisms.softmax import SoftmaxAttention
from longspan.audit import Claims, Reading, audit, resolve
from longspan.audit.external import ModelSubject, ModuleSubject
from longspan.audit.subjects import MechanismSubject
from longspan.audit.targets import subjects_of
from longspan.errors import InvalidInput, InvalidOption, UnknownName


def test_a_registered_name_is_every_form_and_every_small_option() -> None:
    subjects = resolve("window")
    assert {subject.form for subject in subjects} >= {"causal, window=5", "bidirectional, window=5"}
    assert all(isinstance(subject, MechanismSubject) for subject in subjects)


def test_options_replace_the_small_ones() -> None:
    subjects = resolve("window", options={"window": 9})
    assert [subject.form for subject in subjects] == ["bidirectional", "causal"]
    assert all(subject.module.options.window == 9 for subject in subjects)


def test_a_class_of_ours_by_path_is_every_form() -> None:
    assert len(resolve("longspan.attention.mechanisms.window:WindowAttention")) == len(resolve("window"))


def test_a_mechanism_is_audited_as_built_and_not_changed() -> None:
    mechanism = build("window", heads=2, head_dim=8, causal=True, window=4).train()
    (subject,) = subjects_of(mechanism)
    assert subject.form == "causal"
    assert mechanism.training


def test_modules_and_classes_and_functions_are_targets() -> None:
    for target in ("other_models:layer", "other_models:Layer"):
        (subject,) = resolve(target)
        assert isinstance(subject, ModuleSubject)
        assert subject.width == WIDTH


def test_a_target_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_in_this_folder.py").write_text("from torch import nn\nmade = nn.Linear(6, 6)\n")
    monkeypatch.chdir(tmp_path)
    (subject,) = resolve("only_in_this_folder:made")
    assert subject.width == 6


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("windw", UnknownName, "did you mean 'window'?"),
        ("no_such_package:thing", UnknownName, "no module 'no_such_package'"),
        ("no_such_package.part:thing", UnknownName, "no module 'no_such_package.part'"),
        ("other_models:Layr", UnknownName, "did you mean 'Layer'?"),
        ("other_models:", InvalidInput, "package.module:factory"),
        ("other_models:number", InvalidInput, "must be a torch.nn.Module or make one, not int"),
        ("other_models:makes_a_number", InvalidInput, "must give a torch.nn.Module, not int"),
        ("other_models:NeedsArguments", InvalidInput, "cannot be called without arguments"),
        ("other_models:Classifier", InvalidInput, r"returned torch.float32 of \(2, 2\)"),
    ],
)
def test_a_bad_target_is_one_clear_line(target: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        resolve(target)
    assert "\n" not in str(raised.value)


def test_a_module_that_fails_to_import_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_something.py").write_text("import no_such_dependency\n")
    (tmp_path / "raises_at_once.py").write_text("raise RuntimeError('not today')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="no_such_dependency"):
        resolve("needs_something:made")
    with pytest.raises(InvalidInput, match="not today"):
        resolve("raises_at_once:made")


def test_not_a_module() -> None:
    with pytest.raises(InvalidInput, match=r"must be a torch\.nn\.Module, not dict"):
        audit({})  # type: ignore[arg-type]


def test_claims_are_for_modules_that_are_not_ours() -> None:
    with pytest.raises(InvalidOption, match="which declares its own claims"):
        audit("window", Claims(causal=True))
    with pytest.raises(InvalidOption, match="options"):
        audit(Layer(), options={"window": 3})
    with pytest.raises(InvalidOption, match="order"):
        Claims(order=-1)


def test_an_unknown_width_must_be_given() -> None:
    class Bare(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(dim=1)

    with pytest.raises(InvalidInput, match="say how wide"):
        audit(Bare())
    assert audit(Bare(), Claims(causal=True), reading=Reading(width=5)).passed


def test_masks_of_both_kinds_are_understood() -> None:
    assert audit(Layer(), Claims(causal=True, padding=True)).passed
    assert audit(DropMaskLayer(), Claims(causal=True, padding=True)).passed


def test_a_mask_of_the_wrong_meaning_fails() -> None:
    certificate = audit(DropMaskLayer(), Claims(padding=True), reading=Reading(mask_keeps=True))
    assert not certificate.passed


def test_a_module_without_a_mask_cannot_claim_padding() -> None:
    certificate = audit(Mixer(), Claims(padding=True))
    unmeasured = {finding.check: finding.detail for finding in certificate.not_measured}
    assert certificate.verdict == "not measured"
    assert set(unmeasured) == {"padding_content", "padding_amount", "training_padding"}
    assert all("takes no padding mask that is known" in detail for detail in unmeasured.values())


def test_a_layer_with_start_and_extend_streams() -> None:
    certificate = audit(Mixer(), Claims(causal=True, streaming=True, order=1, any_length=True, save_load=True))
    assert certificate.passed, certificate.table(failed_only=True)


def test_tools_and_precision_can_be_claimed_of_any_layer() -> None:
    claims = Claims(half_precision=True, save_load=True, compile=True, export=True, order=2)
    certificate = audit(Layer(), claims)
    assert certificate.passed, certificate.table(failed_only=True)


def test_order_of_a_layer() -> None:
    certificate = audit(Layer(), Claims(order=1))
    assert [finding.check for finding in certificate.failed] == ["order"]


def test_a_model_of_tokens_is_recognised() -> None:
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    (subject,) = subjects_of(model)
    assert isinstance(subject, ModelSubject)
    leaves, out = subject.differentiable(subject.sample(2, 9, seed=0))
    assert leaves["embedded"].shape == (2, 9, 8)
    assert out.shape == (2, 9, 11)


def test_position_embeddings_are_not_mistaken_for_tokens() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.tokens = nn.Embedding(100, 8), nn.Embedding(100, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.places(torch.arange(x.shape[1])) + 2 * self.tokens(x)

    (subject,) = subjects_of(Model())
    leaves, out = subject.differentiable(subject.sample(2, 9, seed=0))
    (gradient,) = torch.autograd.grad(out.sum(), leaves["embedded"])
    assert torch.equal(gradient, torch.full((2, 9, 8), 2.0))


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    subject = MechanismSubject.build(SoftmaxAttention, causal=True, options={}, form="")
    first, again, other = (subject.sample(2, 9, seed) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) and not torch.equal(first[name], other[name]) for name in first)


def test_replace_changes_only_the_given_positions() -> None:
    subject = MechanismSubject.build(SoftmaxAttention, causal=True, options={}, form="")
    sample = subject.sample(2, 9, seed=0)
    where = torch.zeros(2, 9, dtype=torch.bool)
    where[0, 3:] = True
    changed = subject.replace(sample, where, seed=5, scale=100.0)
    for name, part in sample.items():
        same = (changed[name] == part).all(dim=-1).all(dim=1)
        assert torch.equal(same, ~where)


class Mean(nn.Module):
    """The same at every position of a row, and another in every row."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True).expand_as(x)


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)


@pytest.mark.parametrize(("module", "passed"), [(Mean(), True), (Constant(), False)])
def test_outputs_that_differ_by_row_alone_are_not_constant(module: nn.Module, passed: bool):
    certificate = audit(module, reading=Reading(width=8))
    (found,) = [finding for finding in certificate.findings if finding.check == "batch_invariance"]
    assert found.passed is passed
