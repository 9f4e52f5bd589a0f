"""Masked keys are inert whatever they hold, also NaN and infinity."""

import pytest
import torch
from torch import Tensor

from longspan.attention import registry
from longspan.attention.devices import as_other_device
from longspan.audit.behaviour import masks
from longspan.audit.subjects import MechanismSubject, Sample
from longspan.audit.targets import resolve

SUBJECTS = [s for name in registry.names() for s in resolve(name) if s.module.supports.key_mask]
EACH = pytest.mark.parametrize("subject", SUBJECTS, ids=[f"{s.name}-{s.form.replace(', ', '-')}" for s in SUBJECTS])
LENGTH = 40


def spoiled(sample: Sample, mask: Tensor, names: set[str], value: float) -> Sample:
    """`value` at the masked positions of these tensors."""
    results = dict(sample)
    for name in names:
        part = sample[name]
        spot = ~mask[:, None, :, None] if part.dim() == 4 else ~mask[..., None]
        results[name] = part.masked_fill(spot, value)
    return results


def of_keys(subject: MechanismSubject) -> set[str]:
    """What belongs to keys; where queries are the keys, the queries too."""
    names = {"k", "v"} | {s.name for s in subject.module.streams if s.kind == "heads" and s.like != "q"}
    if "k" not in subject.module.projects:
        names |= {"q"}
    return names


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@EACH
def test_real_rows_and_their_gradients_do_not_see_masked_keys(subject: MechanismSubject, value: float) -> None:
    for mask in masks(2, LENGTH).values():
        clean = subject.sample(2, LENGTH, seed=1)
        dirty = spoiled(clean, mask, of_keys(subject), value)
        for way in (None, as_other_device):
            results = []
            for sample in (clean, dirty):
                if way is None:
                    leaves, out = subject.differentiable(sample, mask)
                    found = torch.autograd.grad(out[mask].sum(), list(leaves.values()), allow_unused=True)
                else:
                    with way():
                        leaves, out = subject.differentiable(sample, mask)
                        found = torch.autograd.grad(out[mask].sum(), list(leaves.values()), allow_unused=True)
                results.append([out[mask], *found])
            for one, other in zip(*results):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@EACH
def test_real_rows_do_not_see_what_padded_rows_hold(subject: MechanismSubject) -> None:
    """A padded position with NaN in its hidden state has NaN in its query as well."""
    for mask in masks(2, LENGTH).values():
        clean = subject.sample(2, LENGTH, seed=1)
        every = {name for name, part in clean.items() if part.is_floating_point()}
        expected = subject.run(clean, mask)[mask]
        seen = subject.run(spoiled(clean, mask, every, float("nan")), mask)[mask]
        torch.testing.assert_close(seen, expected, rtol=0, atol=1e-12)


@EACH
def test_masked_keys_are_inert_in_decoding(subject: MechanismSubject) -> None:
    if not (subject.module.supports.streaming and subject.module.causal):
        return
    mask = masks(2, 12)["holes"]
    clean = subject.sample(2, 12, seed=1)
    dirty = spoiled(clean, mask, of_keys(subject), float("nan"))
    results = []
    for sample in (clean, dirty):
        state, rows = subject.start(2), []
        for at in range(0, 12, 3):
            part = {name: x[:, :, at : at + 3] if x.dim() == 4 else x[:, at : at + 3] for name, x in sample.items()}
            out, state = subject.extend(part, state, mask[:, at : at + 3])
            rows.append(out)
        results.append(torch.cat(rows, 1)[mask])
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)
