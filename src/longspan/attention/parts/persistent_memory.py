"""Persistent memory: learned keys and values that every query reads besides the sequence (Sukhbaatar et al. 2019).

Each head has its own vectors; they have no position, and no mask hides them. One softmax covers the keys of the
sequence and the persistent ones, so a mechanism adds one more source of keys to its own.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from longspan.attention.kernels.multi_source_softmax import KeySource
from longspan.attention.layouts import Dense
from longspan.attention.spec import Cost, Shape
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from longspan.attention.base import Attention


class PersistentMemory(nn.Module):
    """`count` keys and values per head.

    The parameters are N(0, 1/head_dim) and N(0, 1/count) and are multiplied by √head_dim and √count (the paper's
    section 4.1), so that the vectors start with variance 1, and learn as the weights of a feed-forward layer do.
    """

    def __init__(self, shape: Shape, count: int) -> None:
        super().__init__()
        if count < 1:
            raise InvalidOption(f"persistent must be a number of vectors of at least 1, not {count}")
        self.count = count
        self.keys = nn.Parameter(torch.randn(shape.heads, count, shape.head_dim) * shape.head_dim**-0.5)
        self.values = nn.Parameter(torch.randn(shape.heads, count, shape.value_dim) * count**-0.5)

    def vectors(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, (heads, count, width), of the dtype of `like`."""
        keys, values = self.keys * self.keys.shape[2] ** 0.5, self.values * self.count**0.5
        return keys.to(like.dtype), values.to(like.dtype)

    def extra_repr(self) -> str:
        return f"count={self.count}"


def sources(attention: "Attention", q: Tensor) -> list[KeySource]:
    """The persistent keys and values as a source for the queries q; none if the mechanism has none."""
    if attention.persistent is None:
        return []
    keys, values = (x.expand(len(q), -1, -1, -1) for x in attention.persistent.vectors(q))
    return [KeySource(Dense(), keys, values)]


def append_scores(
    attention: "Attention", scores: Tensor, keep: Tensor, q: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """For definitions: scores and what may be read, with a column for each persistent key.

    `scale` is the factor on the scores, 1/√head_dim unless given.
    """
    if attention.persistent is None:
        return scores, keep
    keys, _ = attention.persistent.vectors(q)
    scale = attention.shape.head_dim**-0.5 if scale is None else scale
    added = torch.einsum("bhid,hjd->bhij", q, keys) * scale
    keep = torch.cat([keep.expand(scores.shape), torch.ones_like(added, dtype=torch.bool)], -1)
    return torch.cat([scores, added], -1), keep


def add_cost(attention: "Attention", cost: Cost, queries: int) -> Cost:
    """The cost with that of reading the persistent vectors."""
    if attention.persistent is None:
        return cost
    pairs, width = attention.shape.heads * attention.persistent.count, attention.shape.fused_width
    return Cost(cost.flops + 4 * pairs * queries * width, cost.floats + 2 * pairs * width)


__all__ = ["PersistentMemory", "add_cost", "append_scores", "sources"]
