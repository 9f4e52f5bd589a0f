"""Activations computed again in the backward pass, block by block (Chen et al. 2016): less memory, more work."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from longspan.nn.block import Block
from longspan.nn.memory_layer import MemoryLayer
from longspan.recompute import Deciding, deciding


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
        run = partial(forward, **named)
        # The draws of dropout are made again too.
        return checkpoint(run if torch.compiler.is_compiling() else _Replayed(run), *given, use_reentrant=False)

    return called


class _Replayed:
    """Decisions of the first run serve the second.

    A forward pass may change what they depend on: centroids of clusters move, random features are drawn anew.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        self.decisions: list[Any] | None = None

    def __call__(self, *given: Any) -> Any:
        token = deciding.set(self._writer() if self.decisions is None else self._reader())
        try:
            return self.forward(*given)
        finally:
            deciding.reset(token)

    def _writer(self) -> Deciding:
        decisions: list[Any] = []
        self.decisions, around = decisions, deciding.get()

        def decide(compute: Callable[[], Any]) -> Any:
            decisions.append(compute() if around is None else around(compute))
            return decisions[-1]

        return decide

    def _reader(self) -> Deciding:
        decisions = iter(self.decisions or ())
        return lambda compute: next(decisions)


__all__ = ["recompute"]
