"""The projection that serves a segment and later ones."""

import torch

from longspan.nn.relative_multihead import project_twice


def test_first_and_second_derivatives_of_both_results() -> None:
    torch.manual_seed(0)
    y, again = (torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    slopes = [torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]

    def penalty(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = (y, again, weight)
        gradients = torch.autograd.grad((first * slopes[0] + second * slopes[1]).sum(), inputs, create_graph=True)
        norm = sum(gradient.square().sum() for gradient in gradients)
        return torch.autograd.grad(norm, (*inputs, *slopes), allow_unused=True)

    with torch.no_grad():
        again.copy_(y)  # it has the values of y, but not its past
    expected = penalty(y @ weight.mT, again @ weight.mT)
    torch.testing.assert_close(penalty(*project_twice(y, again, weight)), expected, rtol=0, atol=1e-10)
