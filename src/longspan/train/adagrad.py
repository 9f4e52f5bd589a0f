"""Adagrad (Duchi et al. 2011) that touches only the rows with a gradient where gradients are sparse.

torch's own builds several sparse tensors per step, which takes longer than a whole forward pass of word2vec.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Adagrad(torch.optim.Optimizer):
    """p ← p - rate · g / (√Σg² + eps), for each number; the same as torch.optim.Adagrad without decays."""

    def __init__(self, groups: Iterable[dict[str, Any]], *, eps: float = 1e-10) -> None:
        super().__init__(groups, {"lr": 0.0, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if "sum" not in state:
                        state["sum"] = torch.zeros_like(parameter)
                    _update(parameter, parameter.grad, state["sum"], group["lr"], group["eps"])


def _update(parameter: Tensor, gradient: Tensor, total: Tensor, rate: float, eps: float) -> None:
    if not gradient.is_sparse:
        total.addcmul_(gradient, gradient)
        parameter.addcdiv_(gradient, total.sqrt().add_(eps), value=-rate)
        return
    gradient = gradient.coalesce()
    rows, values = gradient.indices()[0], gradient.values()
    squares = total.index_select(0, rows).addcmul_(values, values)
    total.index_copy_(0, rows, squares)
    parameter.index_add_(0, rows, values / squares.sqrt_().add_(eps), alpha=-rate)


__all__ = ["Adagrad"]
