"""Activation checkpointing (Chen et al. 2016): recompute each block in the backward pass, to save memory."""

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
    """Make each block save only its inputs for the backward pass. Parameter names do not change."""
    for module in model.modules():
        if isinstance(module, (Block, MemoryLayer)):
            module.forward = _checkpointed(module, module.forward)  # type: ignore[method-assign]


def _checkpointed(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def call(*inputs: Any, **named: Any) -> Any:
        if not (module.training and torch.is_grad_enabled()):
            return forward(*inputs, **named)
        run = partial(forward, **named)
        # `checkpoint` restores the random state, so that dropout repeats its masks.
        return checkpoint(run if torch.compiler.is_compiling() else _Replayed(run), *inputs, use_reentrant=False)

    return call


class _Replayed:
    """A forward pass whose second run repeats the decisions of the first.

    The first run may change what decisions depend on: cluster centroids move, random features are redrawn.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        self.decisions: list[Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        token = deciding.set(self._writer() if self.decisions is None else self._reader())
        try:
            return self.forward(*inputs)
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
