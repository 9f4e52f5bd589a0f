"""Second derivatives of operations with a hand-written backward pass.

Such a backward pass computes numbers, not a graph. If a user needs a graph of the gradients (`create_graph=True`, a
gradient penalty, `hvp`), it would return constants and the second derivatives would be silently wrong: torch's
`once_differentiable` only notices if the *incoming* gradient requires one too. In that case `twice_differentiable`
recomputes the output with ordinary differentiable operations and lets autograd differentiate those.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from longspan.errors import Unsupported
from longspan.precision import full_precision

# From ctx and its saved tensors: the outputs, and for each argument of `forward` its saved tensor, or None.
Recompute = Callable[[Any, Sequence[Any]], tuple[Tensor | Sequence[Tensor], Sequence[Tensor | None]]]
Backward = Callable[..., Any]


class Function(torch.autograd.Function):
    """`torch.autograd.Function` with a typed `apply`."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *arguments: Any) -> Any: ...


def twice_differentiable(recompute: Recompute) -> Callable[[Backward], Backward]:
    """Decorator for `backward` of a `Function`; write it below `@staticmethod`.

    `recompute` computes the outputs from the saved tensors with differentiable operations. It runs only if a graph of
    the gradients is needed, and then takes the memory of a plain forward pass.
    """

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def called(ctx: Any, *towards: Tensor | None) -> Any:
            like = next((slope for slope in towards if slope is not None), None)
            # Under autocast, some products would be rounded and others not.
            with nullcontext() if like is None else full_precision(like):
                return _by_autograd(ctx, recompute, towards) if torch.is_grad_enabled() else backward(ctx, *towards)

        return called

    return decorate


def _by_autograd(ctx: Any, recompute: Recompute, towards: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    # Aliases, so that the gradient of one input does not flow on to another that it was computed from. The saved
    # tensors are read once: activation checkpointing yields each of them a single time.
    saved = [x.view_as(x) if isinstance(x, Tensor) and x.requires_grad else x for x in ctx.saved_tensors]
    outputs, inputs = recompute(ctx, saved)
    outputs = [outputs] if isinstance(outputs, Tensor) else outputs
    pairs = [(out, slope) for out, slope in zip(outputs, towards) if slope is not None and out.requires_grad]
    wanted = {index: x for index, x in enumerate(inputs) if x is not None and ctx.needs_input_grad[index]}
    results: list[Tensor | None] = [None] * len(inputs)
    if pairs and wanted:
        gradients = torch.autograd.grad(
            [out for out, _ in pairs],
            list(wanted.values()),
            [slope for _, slope in pairs],
            create_graph=True,
            allow_unused=True,
        )
        for index, gradient in zip(wanted, gradients):
            results[index] = gradient
    return tuple(results)


def refuse_second(what: str, instead: str) -> None:
    """Raise an error for a backward pass that has no differentiable form, instead of a wrong result."""
    if torch.is_grad_enabled():
        raise Unsupported(f"{what} has no second derivative, which create_graph=True needs; {instead}")


__all__ = ["Function", "refuse_second", "twice_differentiable"]
