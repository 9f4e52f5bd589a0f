"""Decisions that a recomputed forward pass must repeat from the first run (see `nn/reversible.py`)."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

Decision = TypeVar("Decision")
Deciding = Callable[[Callable[[], Any]], Any]

# How to make decisions: None computes them; the first run also records them; the second run replays them.
deciding: ContextVar[Deciding | None] = ContextVar("deciding", default=None)


def remember(compute: Callable[[], Decision]) -> Decision:
    """`compute()` without gradients; in the second run of a reversible layer, the result of the first run.

    Decisions are matched by order, so a module must make the same number of them each time. Make them outside
    `torch.utils.checkpoint` and pass them in: it runs its function a third time, after the second run has ended.
    """
    # A compiled stack stores its activations, so there is no second run.
    how = None if torch.compiler.is_compiling() else deciding.get()
    with torch.no_grad():
        return compute() if how is None else how(compute)
