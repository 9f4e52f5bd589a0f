"""Gradients under dropout, for every mechanism that has it: what is dropped forward is dropped backward."""

import pytest
import torch
from torch.autograd import gradcheck

from longspan.attention import registry
from longspan.attention.base import Shape
from longspan.audit.subjects import MechanismSubject
from longspan.audit.targets import resolve

SUBJECTS = [
    subject
    for name in registry.names()
    if registry.find(name).supports.dropout
    for subject in resolve(name)
    if isinstance(subject, MechanismSubject)
]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: f"{subject.name}-{subject.form.replace(', ', '-')}")
def test_gradients_with_a_fixed_seed(subject: MechanismSubject) -> None:
    built, length = subject.module, 19
    shape = Shape(heads=built.shape.heads, head_dim=built.shape.head_dim, max_length=built.shape.max_length)
    module = type(built)(shape, built.options, causal=built.causal, dropout=0.4).double().train()
    sample = {name: part.detach() for name, part in subject.sample(1, length, seed=3).items()}
    streams = subject.streams(sample)
    initial = {name: buffer.clone() for name, buffer in module.named_buffers()}
    q, k, v = (sample[name].double().clone() for name in "qkv")

    def run(v: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        module.load_state_dict(initial, strict=False)  # centroids move with every training pass
        shared = "k" not in module.projects
        return module(q, q if shared else k, v, streams=streams)

    assert not torch.equal(run(v, q), module.eval()(q, q if "k" not in module.projects else k, v, streams=streams))
    module.train()
    assert gradcheck(run, (v.requires_grad_(), q.requires_grad_()), fast_mode=True)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: f"{subject.name}-{subject.form.replace(', ', '-')}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_with_nothing_to_read_get_no_gradient(subject: MechanismSubject, dtype: torch.dtype) -> None:
    built = subject.module
    shape = Shape(heads=built.shape.heads, head_dim=built.shape.head_dim, max_length=built.shape.max_length)
    module = type(built)(shape, built.options, causal=built.causal, dropout=0.3).to(dtype).train()
    sample = subject.sample(2, 40, seed=3, dtype=dtype)
    q, k, v = (sample[name].clone().requires_grad_() for name in "qkv")
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[0] = False
    mask[1, :23] = False
    shared = "k" not in module.projects
    out = module(q, q if shared else k, v, key_mask=mask, streams=subject.streams(sample))
    assert (out[0] == 0).all()
    gradients = torch.autograd.grad(out, (q, v) if shared else (q, k, v), torch.ones_like(out), allow_unused=True)
    for gradient in gradients:
        assert gradient is None or (gradient.isfinite().all() and (gradient[0] == 0).all())
