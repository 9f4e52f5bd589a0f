"""What autograd asks of every mechanism beyond a plain backward: checkpoints and second derivatives."""

from collections.abc import Callable

import pytest
import torch
from forms import SUBJECTS, Inputs, identity, trained
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longspan.attention import registry
from longspan.audit.subjects import MechanismSubject
from longspan.errors import Unsupported

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


@pytest.mark.parametrize("name", ["linear", "window", "gated_linear", "softmax"])
def test_hessian_vector_products(name: str) -> None:
    subject = next(item for item in SUBJECTS if item.name == name and item.module.causal)
    module = trained(subject, torch.float64)
    q, k, v = Inputs(subject, length=LENGTH, dtype=torch.float64, batch=1).heads()
    streams = Inputs(subject, length=LENGTH, dtype=torch.float64, batch=1).streams

    def product(call: Callable[..., Tensor]) -> Tensor:
        found: Tensor = torch.autograd.functional.hvp(
            lambda q: call(q, k, v, streams=streams).square().sum(), q, torch.ones_like(q)
        )[1]
        return found

    results = [product(module), product(module.reference)]
    assert results[1].abs().max() > 0.1
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)


def test_a_state_with_a_past_has_second_derivatives_too() -> None:
    module = registry.build("linear", heads=2, head_dim=4, causal=True).double()
    torch.manual_seed(0)
    leaves = [torch.randn(1, 2, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    first, second = ([x[:, :, part] for x in leaves] for part in (slice(0, 5), slice(5, 9)))
    out, state = module.extend(*first, module.start(1, dtype=torch.float64))
    rest, _ = module.extend(*second, state)
    expected = penalty(module.reference(*leaves), leaves)
    torch.testing.assert_close(penalty(torch.cat([out, rest], 2), leaves), expected, rtol=0, atol=1e-9)


def test_dropout_on_weights_has_no_second_derivative_and_says_so() -> None:
    module = registry.build("window", heads=2, head_dim=4, window=3, dropout=0.5).train()
    q, k, v = (torch.randn(1, 2, 9, 4, requires_grad=True) for _ in range(3))
    out = module(q, k, v)
    with pytest.raises(Unsupported) as caught:
        torch.autograd.grad(out.sum(), q, create_graph=True)
    assert str(caught.value) == (
        "attention with dropout on its weights has no second derivative, which create_graph=True needs; "
        "set that dropout to 0"
    )
