"""Activations computed again in the backward pass, block by block (Chen et al. 2016): less memory, more work."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from longspan.nn.block import Block
from longspan.nn.memory import MemoryLayer


def recompute(model: nn.Module) -> None:
    """Makes each block keep its inputs alone while it is trained; the names of its parameters stay."""
    for module in model.modules():
        if isinstance(module, (Block, MemoryLayer)):
            module.forward = _again(module, module.forward)  # type: ignore[method-assign]


def _again(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def called(*given: Any, **named: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*given, **named)
        # The draws of dropout are made again too.
        return checkpoint(partial(forward, **named), *given, use_reentrant=False)

    return called


__all__ = ["recompute"]
