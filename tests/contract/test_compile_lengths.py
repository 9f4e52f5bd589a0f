"""A compiled mechanism at several lengths: multiples of its blocks and others, and a second length after the first."""

import pytest
import torch
from forms import SUBJECTS, Inputs, identity, trained

from longspan.audit.subjects import MechanismSubject

LENGTHS = (40, 37, 60, 24)  # of 4, 5, 6, 8 and 3 multiples and not; the second shape makes the length dynamic


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS, ids=identity)
def test_compiled_at_several_lengths(subject: MechanismSubject) -> None:
    torch._dynamo.reset()
    module = trained(subject, torch.float64)
    compiled = torch.compile(module, backend="aot_eager")
    for length in LENGTHS:
        inputs = Inputs(subject, length=length, dtype=torch.float64)
        found, expected = inputs.run(compiled), inputs.run(module)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        ours, true = (torch.autograd.grad(out.square().sum(), inputs.leaves, allow_unused=True) for out in (found, expected))
        torch.testing.assert_close(ours, true, rtol=0, atol=1e-8)
