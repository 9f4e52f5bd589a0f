"""Whether the numbers in a tensor can be looked at, as shortcuts that depend on them do."""

import torch
from torch import Tensor


def unreadable(x: Tensor) -> bool:
    """True while a graph is traced, and on `meta`, where there are no numbers."""
    return torch.compiler.is_compiling() or x.is_meta


__all__ = ["unreadable"]
