"""Mixed precision: every mechanism under autocast, forward and backward, against float32."""

import pytest
import torch
from forms import SUBJECTS, Inputs, identity, trained
from torch import Tensor

from longspan.audit.subjects import MechanismSubject

LENGTH = 40
# Decisions (which bucket, which cluster) may fall otherwise where heads are rounded: then values are not compared.
DECIDES = {"reformer", "routing"}


def near(found: Tensor | None, expected: Tensor | None, size: float = 0.0) -> None:
    """Within a tenth; `size` is that of all gradients, as some are 0 but for rounding (a shift of all keys)."""
    if expected is None:
        assert found is None
        return
    assert found is not None and found.dtype == expected.dtype and bool(found.isfinite().all())
    gap = (found - expected).norm() / expected.norm().clamp_min(max(1e-6, 0.01 * size))
    assert gap < 0.1, f"relative error {gap:.3f}"


@pytest.mark.parametrize("half", [False, True], ids=["heads32", "heads16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("subject", SUBJECTS, ids=identity)
def test_mechanism_under_autocast(subject: MechanismSubject, dtype: torch.dtype, half: bool) -> None:
    """`half`: the heads come rounded, as from projections under autocast; the weights are float32 either way."""
    module = trained(subject, torch.float32)
    inputs = Inputs(subject, length=LENGTH, dtype=torch.float32)
    weights = [*inputs.leaves, *module.parameters()]
    for masked in (False, True):
        expected = inputs.run(module, masked=masked)
        slopes = torch.autograd.grad(expected.square().sum(), weights, allow_unused=True)
        with torch.autocast("cpu", dtype):
            out = inputs.run(module, masked=masked, cast=dtype if half else None)
            found = torch.autograd.grad(out.float().square().sum(), weights, allow_unused=True)
        if subject.name in DECIDES:
            assert bool(out.isfinite().all())
            continue
        near(out.float(), expected.detach())
        size = max(float(slope.norm()) for slope in slopes if slope is not None)
        for ours, true in zip(found, slopes, strict=True):
            near(ours, true, size)
