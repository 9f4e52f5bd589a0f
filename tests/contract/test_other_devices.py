"""Off the CPU, every mechanism gives the same numbers with the same order of memory.

There is no other device here, so CPU tensors are made to take its path, and `meta` tensors show that no operation of
the path needs a value on the host.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from longspan.attention import build, registry
from longspan.attention.devices import as_other_device
from longspan.attention.kernels import multi_source_softmax, query_chunks
from longspan.audit.counting import LargestTensor
from longspan.audit.subjects import MechanismSubject, Sample
from longspan.audit.targets import resolve

SUBJECTS = [subject for name in registry.names() for subject in resolve(name)]
EACH = pytest.mark.parametrize("subject", SUBJECTS, ids=[f"{s.name}-{s.form.replace(', ', '-')}" for s in SUBJECTS])
LENGTH = 50
LONG = 4096


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few queries, so that short texts are split as long ones are."""
    monkeypatch.setattr(query_chunks, "PIECE", 1 << 10)
    monkeypatch.setattr(multi_source_softmax, "FEW", 0)


def gradients(subject: MechanismSubject, sample: Sample, mask: Tensor | None) -> list[Tensor]:
    """The output, and the gradients of all inputs and weights."""
    leaves, out = subject.differentiable(sample, mask)
    wanted = [*leaves.values(), *(p for p in subject.module.parameters() if p.requires_grad)]
    towards = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    found = torch.autograd.grad(out, wanted, towards, allow_unused=True, materialize_grads=True)
    return [out.detach(), *found]


@EACH
def test_values_and_gradients_are_those_of_the_cpu(subject: MechanismSubject, small_pieces: None) -> None:
    sample = subject.sample(2, LENGTH, seed=1)
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[0, LENGTH - 9 :] = False
    for keep in (None, mask) if subject.module.supports.key_mask else (None,):
        expected = gradients(subject.fresh(), sample, keep)
        with as_other_device():
            seen = gradients(subject.fresh(), sample, keep)
        for one, other in zip(seen, expected):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def training(subject: MechanismSubject) -> MechanismSubject:
    rate = 0.1 if subject.module.supports.dropout else 0.0
    twin = subject.rebuilt(max_length=LONG, dropout=rate)
    twin.module.train()
    return twin


SIZES = [(subject, masked) for subject in SUBJECTS for masked in (False, True)
         if masked == subject.module.supports.key_mask or subject.name == "softmax"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "masked"), SIZES, ids=[f"{s.name}-{s.form.replace(', ', '-')}-{masked}" for s, masked in SIZES]
)
def test_no_tensor_of_all_pairs(subject: MechanismSubject, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_chunks, "PIECE", 1 << 20)
    subject = training(subject)
    subject.module.to("meta")
    sample = {name: part.to("meta") for name, part in subject.sample(1, LONG, 1).items()}
    mask = torch.ones(1, LONG, dtype=torch.bool, device="meta") if masked else None
    with LargestTensor() as seen:
        gradients(subject, sample, mask)
    weights = max((p.numel() for p in subject.module.parameters()), default=0)
    assert seen.elements <= max(LONG * LONG // 8, weights), f"{seen.elements} elements by {seen.maker}"


BIASED = {
    "softmax": lambda causal: build("softmax", heads=2, head_dim=8, causal=causal),
    "softmax, additive": lambda causal: build("softmax", heads=2, head_dim=8, causal=causal, score="additive"),
    "window": lambda causal: build("window", heads=2, head_dim=8, causal=causal, window=3),
    "window, dilated": lambda causal: build("window", heads=2, head_dim=8, causal=causal, window=3, dilation=2),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make", list(BIASED.values()), ids=list(BIASED))
def test_a_learned_bias_in_pieces(make: Callable[[bool], Any], causal: bool, small_pieces: None) -> None:
    """Values, gradients and the gradient of the bias are those of the definition; on the CPU too."""
    mechanism = make(causal).double()
    given = [torch.randn(2, 2, LENGTH, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    bias = torch.randn(2, 2 * LENGTH - 1, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, LENGTH) < 0.7
    towards = torch.randn_like(given[0])
    results = []
    for way in (mechanism.reference, mechanism):
        out = way(*given, key_mask=mask, bias=bias)
        results.append([out, *torch.autograd.grad(out, [*given, bias], towards)])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_torchs_kernel_with_one_row_of_mask_for_all_queries(dtype: torch.dtype) -> None:
    """What CUDA uses for padding: equal to the pieces, and 0 with gradient 0 where nothing may be read."""
    q, k, v = (torch.randn(2, 2, 9, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    keep = torch.rand(2, 9) < 0.6
    keep[1] = False
    out = query_chunks.masked_sdpa(q, k, v, keep, 0.5, 0.0)
    expected = scaled_dot_product_attention(q[:1], k[:1], v[:1], attn_mask=keep[0].expand(9, 9), scale=0.5)
    torch.testing.assert_close(out[:1], expected)
    assert bool((out[1] == 0).all())
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert bool(gradient.isfinite().all()) and bool((gradient[1] == 0).all())


def test_dropout_in_pieces_keeps_the_mean_and_agrees_with_its_gradient(small_pieces: None) -> None:
    """The forward pass is linear in the values, so that its gradient must drop the very same weights."""
    torch.manual_seed(0)
    mechanism = build("softmax", heads=2, head_dim=8, dropout=0.5).double().train()
    q, k = (torch.randn(1, 2, LENGTH, 8, dtype=torch.float64) for _ in range(2))
    v = torch.randn(1, 2, LENGTH, 8, dtype=torch.float64, requires_grad=True)
    with as_other_device():
        out = mechanism(q, k, v)
        (gradient,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close((gradient * v).sum(), out.sum())
    with as_other_device(), torch.no_grad():
        ones = torch.cat([mechanism(q, k, torch.ones_like(v)) for _ in range(200)])
    assert abs(float(ones.mean()) - 1) < 0.01 and float(ones.std()) > 0.05
