"""Decisions that a recomputation must take over from the first run (see `nn/reversible.py`)."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

Decision = TypeVar("Decision")
Deciding = Callable[[Callable[[], Any]], Any]

# How a decision is taken just now: None computes it; the first run also writes it down; the second reads it.
deciding: ContextVar[Deciding | None] = ContextVar("deciding", default=None)


def remember(compute: Callable[[], Decision]) -> Decision:
    """`compute()`, without gradient; in the second run of a reversible layer, what it gave in the first.

    Decisions are matched by their order, so a module takes the same number of them each time. Take them outside of
    `torch.utils.checkpoint` and hand them in: it runs its function a third time, after the second run is over.
    """
    # A compiled stack keeps its activations, so there is no second run.
    how = None if torch.compiler.is_compiling() else deciding.get()
    with torch.no_grad():
        return compute() if how is None else how(compute)
