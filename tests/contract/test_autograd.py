"""What autograd asks of every mechanism beyond a plain backward: checkpoints and second derivatives."""

import pytest
import torch
from forms import SUBJECTS, Inputs, identity, trained
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longspan.audit.subjects import MechanismSubject

LENGTH = 70  # past a chunk of the scans, and no multiple of any block


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("subject", SUBJECTS, ids=identity)
def test_gradients_under_a_checkpoint(subject: MechanismSubject, masked: bool) -> None:
    module = trained(subject, torch.float64)
    inputs = Inputs(subject, length=LENGTH, dtype=torch.float64)
    wanted = (*inputs.leaves, *module.parameters())
    direct = inputs.run(module, masked=masked)
    again = checkpoint(lambda: inputs.run(module, masked=masked), use_reentrant=False)
    slope = torch.randn(direct.shape, dtype=direct.dtype, generator=torch.Generator().manual_seed(1))
    expected = torch.autograd.grad(direct, wanted, slope, allow_unused=True)
    torch.testing.assert_close(
        torch.autograd.grad(again, wanted, slope, allow_unused=True), expected, rtol=0, atol=1e-12
    )


def penalty(out: Tensor, leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradient of the squared norm of a gradient."""
    first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True, allow_unused=True)
    norm = torch.stack([gradient.square().sum() for gradient in first if gradient is not None]).sum()
    return torch.autograd.grad(norm, leaves, allow_unused=True)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("subject", SUBJECTS, ids=identity)
def test_second_derivatives_are_those_of_the_oracle(subject: MechanismSubject, masked: bool) -> None:
    module = trained(subject, torch.float64)
    inputs = Inputs(subject, length=LENGTH, dtype=torch.float64)
    expected = penalty(inputs.run(module.reference, masked=masked), inputs.leaves)
    found = penalty(inputs.run(module, masked=masked), inputs.leaves)
    for ours, oracle in zip(found, expected, strict=True):
        size = 1.0 if oracle is None else max(1.0, oracle.abs().max().item())
        torch.testing.assert_close(ours, oracle, rtol=0, atol=1e-9 * size)
