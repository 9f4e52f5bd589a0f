"""The certificate: what it holds, and that a check that cannot run is "not measured"."""

import json

import pytest
import torch
from other_models import WIDTH, Layer
from torch import Tensor, nn

from longspan.audit import Claims, Finding, audit
from longspan.audit.counting import LargestTensor, count_flops, count_kept


def test_only_what_is_claimed_is_measured() -> None:
    certificate = audit(Layer())
    assert [finding.check for finding in certificate.findings] == ["batch_invariance", "determinism"]
    assert certificate.passed


def test_a_false_claim_fails_and_says_where() -> None:
    certificate = audit(Layer(causal=False), Claims(causal=True))
    assert not certificate.passed
    worst = certificate.failed[0]
    assert worst.check == "causal_perturbation"
    assert worst.measured > worst.limit
    assert "inputs after" in worst.detail
    assert "FAIL  causal_perturbation" in certificate.table(failed_only=True)
    assert "determinism" in certificate.table()


def test_a_module_that_does_nothing_proves_nothing() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return self.project(torch.zeros_like(x))

    certificate = audit(Constant(), Claims(causal=True, padding=True))
    assert certificate.verdict == "not measured" and not certificate.passed and not certificate.failed
    assert {finding.check for finding in certificate.not_measured} == {
        "padding_content",
        "padding_amount",
        "causal_perturbation",
        "causal_gradient",
        "prefix",
        "training_padding",
        "training_causal",
        "batch_invariance",
    }


class Fragile(Layer):
    """Takes some lengths only."""

    def __init__(self, *lengths: int) -> None:
        super().__init__()
        self.lengths = lengths

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        if x.shape[1] not in self.lengths:
            raise RuntimeError("another length will not do")
        return super().forward(x, mask)[0]


def test_a_check_that_cannot_run_is_not_measured_and_no_failure() -> None:
    certificate = audit(Fragile(64), Claims(causal=True))
    assert certificate.verdict == "not measured" and certificate.failed == ()
    (finding,) = certificate.not_measured
    assert finding.check == "prefix" and finding.verdict == "not measured" and not finding.passed
    assert finding.detail.startswith("at length 1, 2, 3, 7, 32, 33, 61, 63, where it raised RuntimeError: another")
    assert "not measured  prefix\n" in certificate.table(failed_only=True)
    assert certificate.settings["lengths"] == [64]  # no longer one was taken


def test_lengths_that_a_module_refuses_are_left_out_and_named() -> None:
    certificate = audit(Fragile(*range(10, 200)), Claims(causal=True, padding=True))
    assert certificate.passed, certificate.table(failed_only=True)
    assert certificate.settings["lengths"] == [64, 192]  # the longest that it takes of those that are tried
    (prefix,) = (finding for finding in certificate.findings if finding.check == "prefix")
    assert prefix.detail.startswith("not measured at length 1, 2, 3, 7, where it raised RuntimeError: another")


def test_a_claim_that_something_works_fails_when_it_raises() -> None:
    certificate = audit(Fragile(64), Claims(any_length=True, export=True))
    assert {finding.check for finding in certificate.failed} == {"lengths", "export"}
    assert certificate.verdict == "fail"


def test_json() -> None:
    certificate = audit("other_models:Layer", Claims(causal=True, streaming=True))
    read = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert read["subject"] == "other_models:Layer"
    assert read["passed"] is False and read["verdict"] == "not measured"
    assert set(read["versions"]) == {"longspan", "torch"}
    assert read["settings"]["forms"][0]["claims"]["streaming"] is True
    streaming = next(finding for finding in read["findings"] if finding["check"] == "streaming")
    assert streaming["measured"] is None and streaming["verdict"] == "not measured" and streaming["passed"] is False
    assert set(streaming) == {"check", "claim", "verdict", "measured", "limit", "passed", "detail", "form"}


def test_progress_hears_of_every_finding() -> None:
    heard: list[Finding] = []
    certificate = audit(Layer(), Claims(causal=True), progress=heard.append)
    assert tuple(heard) == certificate.findings


def test_the_module_and_the_random_numbers_stay_as_they_were() -> None:
    layer = Layer().train()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    audit(layer, Claims(causal=True, save_load=True, half_precision=True))
    assert torch.equal(torch.rand(3), expected)
    assert layer.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_a_linear_layer_claims_order_one() -> None:
    assert audit(nn.Sequential(nn.Linear(WIDTH, WIDTH)), Claims(order=1)).passed


# Counting


def test_flops_of_products_and_of_the_fused_kernel_agree() -> None:
    q, k, v = torch.randn(2, 3, 10, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    fused = count_flops(lambda: nn.functional.scaled_dot_product_attention(q, k, v))
    assert fused == count_flops(lambda: (q @ k.mT).softmax(dim=-1) @ v) == 4 * 2 * 3 * 10 * 7 * 8


def test_the_largest_tensor_is_seen_in_the_backward_pass_too() -> None:
    class Outer(torch.autograd.Function):
        @staticmethod
        def forward(context: object, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(context: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return (gradient[:, None] * gradient[None]).sum(dim=0)

    x = torch.randn(50, requires_grad=True)
    with LargestTensor() as seen:
        out = Outer.apply(x)
    assert seen.elements == 50
    with LargestTensor() as seen:
        out.sum().backward()
    assert seen.elements == 2500


def test_a_view_counts_as_its_storage() -> None:
    x = torch.randn(100)
    with LargestTensor() as seen:
        x.expand(100, 100)
        x.unfold(0, 50, 1)
    assert seen.elements == 100


def test_saved_tensors_are_counted_once_even_in_a_checkpoint() -> None:
    x = torch.randn(10, requires_grad=True)
    assert count_kept(lambda: x * 2, [x]) == 0  # a factor that is a number keeps nothing
    assert count_kept(lambda: x.exp().sin(), [x]) == 10  # both save the result of exp
    assert count_kept(lambda: x.exp(), [x]) == 10  # the output itself, which autograd saves
    weight = torch.randn(10)
    assert count_kept(lambda: x.exp() * weight, [x]) == 10  # the weight was there before
    assert count_kept(lambda: x.exp() * (weight + 1), [x]) == 10 + 10

    def behind_a_checkpoint() -> Tensor:
        changed = x * 2  # kept by the checkpoint, which no saved-tensor hook is told of
        return torch.utils.checkpoint.checkpoint(lambda y: y.exp().sin(), changed, use_reentrant=False)

    assert count_kept(behind_a_checkpoint, [x]) == 10


@pytest.mark.parametrize("name", ["softmax", "window"])
def test_both_forms_are_in_one_certificate(name: str) -> None:
    from longspan.audit.targets import resolve

    forms = {subject.form.split(",")[0] for subject in resolve(name)}
    assert forms == {"causal", "bidirectional"}
