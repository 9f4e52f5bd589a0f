"""Attention rollout (Abnar and Zuidema 2020, section 3): what each state holds of each input, through residual streams.

    A'_l = ½ A_l + ½ I, rows divided by their sums;    R_l = A'_l R_(l-1),    R_0 = I

A_l is the mean over heads. The control is the rollout of uniform maps: a causal one leans to early tokens by itself.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from longspan.inspect.records import Rollout

MOST_CELLS = 512  # maps of more tokens are pooled first
EVERY_LAYER = 128  # cells up to which every layer is kept


def mix(rollout: Tensor, weights: Tensor) -> Tensor:
    """One more layer: `weights` is the mean over its heads."""
    mixed = weights + torch.eye(len(weights), dtype=weights.dtype)
    return mixed / mixed.sum(-1, keepdim=True) @ rollout


class RolloutBuilder:
    """The rollout of one side of a model, layer by layer; maps come in blocks (rows, keys)."""

    def __init__(self, side: Literal["encoder", "decoder"], axis: str, length: int) -> None:
        self.side, self.axis, self.length = side, axis, length
        self.cell = 1
        while -(-length // self.cell) > MOST_CELLS:
            self.cell *= 2
        self.cells = -(-length // self.cell)
        self.rollout = self.uniform = torch.eye(self.cells)
        self.layers: list[Tensor] = []
        self.current = torch.zeros(self.cells, self.cells)
        self.count = torch.bincount(torch.arange(length) // self.cell, minlength=self.cells).float()

    def add(self, row: int, key: int, block: Tensor) -> None:
        """Sums over the keys of a cell, and over its queries; `finish` divides by their number."""
        if self.cell == 1:
            self.current[row : row + len(block), key : key + block.shape[1]] += block
            return
        rows = torch.arange(row, row + len(block)) // self.cell
        keys = torch.arange(key, key + block.shape[1]) // self.cell
        by_key = torch.zeros(len(block), self.cells).index_add_(1, keys, block.float())
        self.current.index_add_(0, rows, by_key)

    def finish(self, *, causal: bool) -> None:
        """The end of a layer."""
        self.rollout = mix(self.rollout, self.current / self.count[:, None])
        self.uniform = mix(self.uniform, self._uniform(causal))
        self.current = torch.zeros(self.cells, self.cells)
        self.layers = [*self.layers, self.rollout] if self.cells <= EVERY_LAYER else [self.rollout]
        self.number = getattr(self, "number", -1) + 1

    def _uniform(self, causal: bool) -> Tensor:
        weights = self.count.expand(self.cells, -1)
        weights = weights.tril() if causal else weights
        return weights / weights.sum(-1, keepdim=True)

    def record(self) -> Rollout:
        layers = tuple(range(self.number - len(self.layers) + 1, self.number + 1))
        weights = torch.stack(self.layers).numpy().astype(np.float32)
        return Rollout(self.side, self.axis, self.cell, layers, weights, self.uniform.numpy())


__all__ = ["RolloutBuilder", "mix"]
