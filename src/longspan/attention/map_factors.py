"""Attention maps as factors: any part of a map can be computed without the rest.

A mechanism that can write its map as one of these returns it from `factorise`; `Attention.map_factors` is the public
method. A row or a tile then costs as much as its own cells, whatever the length. Tests compare every one of them with
`Attention.weights`, which is measured.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from longspan.attention.layouts.base import wide

CELLS = 1 << 21  # numbers of one block of rows, over all heads
PASSING = 1 << 18  # numbers of a block that is summed and forgotten: small, so that memory does not fragment


@dataclass(frozen=True)
class MapFactors(ABC):
    """A map (batch, heads, queries, keys); `rows` and `keys` below are positions, as slices or indices."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, queries, keys)"""

    @abstractmethod
    def tile(self, rows: Tensor, keys: Tensor) -> Tensor:
        """The weights of these queries on these keys: (batch, heads, rows, keys)."""

    def rows(self, rows: Tensor) -> Tensor:
        """The weights of these queries on all keys."""
        return self.tile(rows, torch.arange(self.shape[3]))

    def row_blocks(self, multiple: int = 1, cells: int = CELLS) -> Iterator[tuple[int, Tensor]]:
        """(first row, weights of some rows), from the top; blocks start at multiples of `multiple`."""
        batch, heads, queries, keys = self.shape
        size = max(1, cells // (batch * heads * keys * multiple)) * multiple
        for begin in range(0, queries, size):
            yield begin, self.rows(torch.arange(begin, min(queries, begin + size)))


@dataclass(frozen=True)
class SoftmaxMap(MapFactors):
    """softmax(scale · q·k + bias) over the keys that may be read: not after the query, near it, not padding."""

    q: Tensor  # (batch, heads, queries, width)
    k: Tensor  # (batch, heads, keys, width)
    scale: float
    causal: bool = False
    key_mask: Tensor | None = None  # (batch, keys)
    bias: Tensor | None = None  # (heads, offsets), offset 0 in the middle
    before: tuple[int, ...] | None = None  # of each head: how far back it reads
    after: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None  # of each head: only every step-th neighbour

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (*self.q.shape[:3], self.k.shape[2])

    def scores(self, rows: Tensor, keys: Tensor) -> Tensor:
        """-inf where nothing may be read."""
        q, k = self.q[:, :, rows].to(wide(self.q.dtype)), self.k[:, :, keys].to(wide(self.k.dtype))
        scores = (q @ k.mT).mul_(self.scale)
        offset = keys - rows[:, None]
        if self.bias is not None:
            middle = self.bias.shape[1] // 2
            scores += self.bias[:, (offset + middle).clamp(0, 2 * middle)]
        hidden = self._hidden(offset, keys)
        return scores if hidden is None else scores.masked_fill_(hidden, float("-inf"))

    def _hidden(self, offset: Tensor, keys: Tensor) -> Tensor | None:
        hidden = None
        if self.causal:
            hidden = (offset > 0)[None, None]
        if self.before is not None and self.after is not None and self.steps is not None:
            before, after, step = (torch.tensor(x)[:, None, None] for x in (self.before, self.after, self.steps))
            far = ((offset < -before) | (offset > after) | (offset % step != 0))[None]
            hidden = far if hidden is None else far | hidden
        if self.key_mask is not None:
            masked = ~self.key_mask[:, keys][:, None, None, :]
            hidden = masked if hidden is None else hidden | masked
        return hidden

    def rows(self, rows: Tensor) -> Tensor:
        weights = self.scores(rows, torch.arange(self.shape[3])).softmax(-1)
        return weights.nan_to_num_(0.0) if bool(weights[..., 0].isnan().any()) else weights  # rows with nothing to read

    @cached_property
    def log_sums(self) -> Tensor:
        """The logarithm of each row's sum of exponentials (batch, heads, queries); inf in rows that read nothing."""
        batch, heads, queries, keys = self.shape
        everything, size = torch.arange(keys), max(1, PASSING // (batch * heads * keys))
        rows = [self.scores(part, everything).logsumexp(-1) for part in torch.arange(queries).split(size)]
        sums = torch.cat(rows, -1)
        return sums.masked_fill(sums == float("-inf"), float("inf"))

    def tile(self, rows: Tensor, keys: Tensor) -> Tensor:
        return self.scores(rows, keys).sub_(self.log_sums[:, :, rows, None]).exp_()


@dataclass(frozen=True)
class ProductMap(MapFactors):
    """left·right / row_sum, times decay^(distance), plus a number that depends on the offset alone."""

    left: Tensor  # (batch, heads, queries, rank)
    right: Tensor  # (batch, heads, keys, rank); 0 for masked keys
    causal: bool = False
    row_sum: Tensor | None = None  # (batch, heads, queries)
    log_decay: Tensor | None = None  # (heads,), with causal only
    added: Tensor | None = None  # (heads, offsets), offset 0 in the middle; 0 past its ends
    key_mask: Tensor | None = None  # for `added`

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (*self.left.shape[:3], self.right.shape[2])

    def tile(self, rows: Tensor, keys: Tensor) -> Tensor:
        weights = self.left[:, :, rows] @ self.right[:, :, keys].mT
        offset = keys - rows[:, None]
        if self.row_sum is not None:
            weights /= self.row_sum[:, :, rows, None]
        if self.log_decay is not None:
            weights *= (self.log_decay[:, None, None] * (-offset).clamp_min(0)).exp().to(weights.dtype)
        if self.causal:
            weights.masked_fill_(offset > 0, 0.0)
        if self.added is not None:
            middle = self.added.shape[1] // 2
            taps = self.added[:, (offset + middle).clamp(0, 2 * middle)] * (offset.abs() <= middle)
            weights += taps if self.key_mask is None else taps * self.key_mask[:, None, None, keys]
        return weights


def kernel_map(
    left: Tensor,
    right: Tensor,
    *,
    causal: bool,
    key_mask: Tensor | None,
    epsilon: float = 0.0,
    normalise: bool = True,
    log_decay: Tensor | None = None,
) -> ProductMap:
    """The map of linear attention from the features of queries and keys."""
    if key_mask is not None:
        right = right.masked_fill(~key_mask[:, None, :, None], 0.0)
    row_sum = None
    if normalise:
        total = right.cumsum(2) if causal else right.sum(2, keepdim=True)
        row_sum = (left * total).sum(-1) + epsilon
        row_sum = row_sum.masked_fill(row_sum == 0, 1.0)
    return ProductMap(left, right, causal, row_sum, log_decay)


__all__ = ["CELLS", "PASSING", "MapFactors", "ProductMap", "SoftmaxMap", "kernel_map"]
