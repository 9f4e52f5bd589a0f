"""The base class of layouts, and the arithmetic that layouts share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.kernels.flash import BLOCKED, DEAD
from longspan.errors import InvalidInput

PIECE = 1 << 20  # most numbers of gathered keys, or of a mask, in one fused call: about what fits in cache


class Layout(ABC):
    """Which keys each query reads.

    `keep` is (batch, keys), True for keys that may be read, or None; `bias` is (heads, offsets) with offset 0 in the
    middle, or None.
    """

    takes_bias = False

    @property
    def shared(self) -> bool:
        """Whether groups of query heads share a head of keys already."""
        return False

    @property
    def widths_differ(self) -> bool:
        """Whether the scores of some heads are narrower, and padded to the width of the others."""
        return False

    @property
    def rows_alike(self) -> bool:
        """Whether all queries read the same keys, so that those of several heads can be rows of one."""
        return False

    @property
    def step(self) -> int | None:
        """Queries can be split at multiples of this number, see `part`; None if they cannot be split."""
        return None

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple["Layout", slice]:
        """The layout of the queries begin..end alone, and which keys they read; `begin` is a multiple of `step`."""
        raise NotImplementedError

    @abstractmethod
    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        """(batch, heads, queries, width), with `BLOCKED` for keys that may not be read."""

    @abstractmethod
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        """The weighted sums of values; weights are shaped like the scores."""

    @abstractmethod
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp, by the fused kernel."""

    @abstractmethod
    def backward(
        self,
        g: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        bias: Tensor | None,
        out: Tensor,
        lse: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of q, k and v; `out` and `lse` are those of the whole softmax, over all sources."""

    @abstractmethod
    def width(self, keys: int) -> int:
        """The width of `scores`."""

    @abstractmethod
    def pairs(self, heads: int, queries: int, keys: int) -> int:
        """The number of query-key products that the fused kernel computes, over all heads."""

    def of_heads(self, heads: slice) -> "Layout":
        """The layout of these query heads alone; a layout that differs by head says which part is theirs."""
        return self

    def share_keys(self, group: int) -> "Layout":
        """The same pattern where each `group` consecutive query heads read one head of keys and values."""
        from longspan.attention.layouts.grouped import Grouped  # it imports this module

        return Grouped(self, group)


def share_keys(layout: Layout, q: Tensor, k: Tensor) -> Layout:
    """The layout itself, or, if k has fewer heads than q, one in which groups of query heads share a head of keys."""
    heads, key_heads = q.shape[1], k.shape[1]
    return layout if heads == key_heads or layout.shared else layout.share_keys(heads // key_heads)


def ceil_div(number: int, by: int) -> int:
    """number / by, rounded up; written so that symbolic lengths stay simple in exported programs."""
    return (number + by - 1) // by


def groups(q: Tensor, most: int) -> Iterator[tuple[slice, slice]]:
    """Slices of sequences and heads, `most` heads in each: some heads of one sequence, or all of several."""
    batch, heads = q.shape[:2]
    size = max(1, min(most, heads))
    rows = max(1, most // heads)
    for row in range(0, batch, rows):
        for head in range(0, heads, size):
            yield slice(row, row + rows), slice(head, head + size)


def pad_rows(x: Tensor, before: int, after: int) -> Tensor:
    """x with zeros before and after its positions."""
    if torch.compiler.is_compiling():
        # Padding by 0 keeps the strides of its input, but the traced graph assumes a contiguous result: views of it
        # would then fail at lengths that need no padding.
        x = x.contiguous()
    return pad(x, (0, 0, before, after))


def first_rows(x: Tensor, length: int) -> Tensor:
    """The first `length` positions of a tensor that was padded to whole blocks."""
    if torch.compiler.is_compiling():  # a slice is specialised to lengths at which it is the whole tensor
        return x.index_select(2, torch.arange(length, device=x.device))
    return x[:, :, :length]


def cut_rows(x: Tensor, length: int) -> Tensor:
    """As `first_rows`, for results that are stored: a copy, so that the padding can be freed."""
    return x if x.shape[2] == length else x[:, :, :length].clone()


def products(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Scaled scores, at least float32."""
    return (q * scale @ k.mT).to(wide(q.dtype))


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scores and sums: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def blocked(keep: Tensor | None, like: Tensor) -> Tensor | None:
    """The mask to add to the scores of every query: (batch, heads or 1, 1, keys)."""
    if keep is None:
        return None
    return blocked_where(~keep, like)[:, None, None] if keep.dim() == 2 else blocked_where(~keep, like)[:, :, None]


def blocked_where(blocked: Tensor, like: Tensor) -> Tensor:
    """A mask to add to scores: `BLOCKED` where `blocked` is True, 0 elsewhere."""
    zeros = torch.zeros(blocked.shape, dtype=wide(like.dtype), device=blocked.device)
    return zeros.masked_fill_(blocked, BLOCKED)


def add(a: Tensor, b: Tensor | None) -> Tensor:
    return a if b is None else a + b


def cap(scores: Tensor, softcap: float | None) -> Tensor:
    """c·tanh(score/c) for each score that may be read; the others stay blocked."""
    if softcap is None:
        return scores
    return (softcap * torch.tanh(scores / softcap)).masked_fill(scores < DEAD, BLOCKED)


def check_reach(bias: Tensor, furthest: int) -> None:
    """Refuse a bias table that ends before the furthest offset to be read."""
    if bias.shape[1] // 2 < furthest:
        raise InvalidInput(f"bias reaches {bias.shape[1] // 2} positions to each side, and {furthest} are read")


def pick_rows(x: Tensor, index: Tensor) -> Tensor:
    """The rows `index` (batch, heads, rows) of x (batch, heads, length, width)."""
    return x.gather(2, index[..., None].expand(-1, -1, -1, x.shape[-1]))


def offset_bias(bias: Tensor, queries: int, keys: int) -> Tensor:
    """A bias table as (heads, queries, keys), the first query at the first key."""
    at = torch.arange(keys, device=bias.device) - torch.arange(queries, device=bias.device)[:, None]
    middle = bias.shape[1] // 2
    return bias[:, (at + middle).clamp(0, 2 * middle)]  # offsets outside are masked, or `check_reach` refused them
