"""Second derivatives of operations that have a backward pass of their own.

Such a backward computes numbers, not a graph. Where a user asks for a graph of the gradients (`create_graph=True`, a
gradient penalty, `hvp`), it would give constants, and the second derivatives would be silently wrong: torch's
`once_differentiable` notices only when the *incoming* gradient needs one too. So `twice_differentiable` then computes
the output again by ordinary differentiable operations and lets autograd differentiate those.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from longspan.errors import Unsupported
from longspan.precision import full_precision

# From ctx and its saved tensors: the outputs, and for each argument of `forward` the saved tensor it came as, or None.
Again = Callable[[Any, Sequence[Any]], tuple[Tensor | Sequence[Tensor], Sequence[Tensor | None]]]
Backward = Callable[..., Any]


def twice_differentiable(again: Again) -> Callable[[Backward], Backward]:
    """Decorates `backward` of a `torch.autograd.Function`; write it below `@staticmethod`.

    `again` computes the outputs from the saved tensors by differentiable operations. It runs only where a graph of the
    gradients is asked for, and takes the memory of a plain forward pass then.
    """

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def called(ctx: Any, *towards: Tensor | None) -> Any:
            like = next((slope for slope in towards if slope is not None), None)
            # Called inside of autocast, which would round some of its products and not others.
            with nullcontext() if like is None else full_precision(like):
                return _by_autograd(ctx, again, towards) if torch.is_grad_enabled() else backward(ctx, *towards)

        return called

    return decorate


def _by_autograd(ctx: Any, again: Again, towards: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    # Aliases, so that the gradient of one input does not go on to another that it was computed from. The saved tensors
    # are read once: a checkpoint hands each of them out a single time.
    saved = [x.view_as(x) if isinstance(x, Tensor) and x.requires_grad else x for x in ctx.saved_tensors]
    outputs, given = again(ctx, saved)
    outputs = [outputs] if isinstance(outputs, Tensor) else outputs
    pairs = [(out, slope) for out, slope in zip(outputs, towards) if slope is not None and out.requires_grad]
    wanted = {place: x for place, x in enumerate(given) if x is not None and ctx.needs_input_grad[place]}
    results: list[Tensor | None] = [None] * len(given)
    if pairs and wanted:
        gradients = torch.autograd.grad(
            [out for out, _ in pairs],
            list(wanted.values()),
            [slope for _, slope in pairs],
            create_graph=True,
            allow_unused=True,
        )
        for place, gradient in zip(wanted, gradients):
            results[place] = gradient
    return tuple(results)


def refuse_second(what: str, instead: str) -> None:
    """For a backward that has no differentiable form: an error instead of a wrong number."""
    if torch.is_grad_enabled():
        raise Unsupported(f"{what} has no second derivative, which create_graph=True asks for; {instead}")


__all__ = ["refuse_second", "twice_differentiable"]
