"""What a layout is, and the arithmetic that layouts share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.kernels.flash import BLOCKED
from longspan.errors import InvalidInput

PIECE = 1 << 20  # numbers of gathered keys, or of a mask, that one fused call may hold: about what caches hold


class Layout(ABC):
    """`keep` is (batch, keys) or None; `bias` is (heads, offsets) with offset 0 in the middle, or None."""

    takes_bias = False

    @property
    def step(self) -> int | None:
        """Queries can be split at multiples of this number, see `part`; None: they cannot be split."""
        return None

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple["Layout", slice]:
        """The layout of the queries begin..end alone, and which keys they read; `begin` is a multiple of `step`."""
        raise NotImplementedError

    @abstractmethod
    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        """(batch, heads, queries, width), `BLOCKED` where a key may not be read."""

    @abstractmethod
    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        """The values under weights shaped as the scores."""

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
        """Gradients of q, k and v, given the output and log-sum-exp of the whole softmax."""

    @abstractmethod
    def width(self, keys: int) -> int:
        """How wide `scores` is."""

    @abstractmethod
    def pairs(self, heads: int, queries: int, keys: int) -> int:
        """How many products of a query and a key the fused way computes, over all heads."""


def ceil_div(number: int, by: int) -> int:
    """Rounded up; written so that symbolic lengths stay simple when a module is exported."""
    return (number + by - 1) // by


def groups(q: Tensor, most: int) -> Iterator[tuple[slice, slice]]:
    """Sequences and heads that go together: `most` heads, and all heads of several sequences where those are fewer."""
    batch, heads = q.shape[:2]
    together = max(1, min(most, heads))
    rows = max(1, most // heads)
    for row in range(0, batch, rows):
        for head in range(0, heads, together):
            yield slice(row, row + rows), slice(head, head + together)


def pad_rows(x: Tensor, before: int, behind: int) -> Tensor:
    """Zeros in front of the positions and behind them."""
    if torch.compiler.is_compiling():
        # A pad by nothing keeps the strides of its input, where the traced graph takes it for contiguous: the views of
        # it would then fail at lengths that need no padding.
        x = x.contiguous()
    return pad(x, (0, 0, before, behind))


def first_rows(x: Tensor, length: int) -> Tensor:
    """The first `length` positions of what was padded to whole blocks."""
    if torch.compiler.is_compiling():  # whether a slice is the whole would tie an exported program to some lengths
        return x.index_select(2, torch.arange(length, device=x.device))
    return x[:, :, :length]


def cut_rows(x: Tensor, length: int) -> Tensor:
    """The same in the fused way, where what is kept should not hold on to its padding."""
    return x if x.shape[2] == length else x[:, :, :length].clone()


def products(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Scaled scores, in float32 at least."""
    return (q * scale @ k.mT).to(wide(q.dtype))


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def blocked(keep: Tensor | None, like: Tensor) -> Tensor | None:
    """What is added to the scores of every query: (batch, heads or 1, 1, keys)."""
    if keep is None:
        return None
    return blocked_where(~keep, like)[:, None, None] if keep.dim() == 2 else blocked_where(~keep, like)[:, :, None]


def blocked_where(blocked: Tensor, like: Tensor) -> Tensor:
    zeros = torch.zeros(blocked.shape, dtype=wide(like.dtype), device=blocked.device)
    return zeros.masked_fill_(blocked, BLOCKED)


def add(a: Tensor, b: Tensor | None) -> Tensor:
    return a if b is None else a + b


def check_reach(bias: Tensor, furthest: int) -> None:
    """Refuse a table that ends before the furthest offset that will be read."""
    if bias.shape[1] // 2 < furthest:
        raise InvalidInput(f"bias reaches {bias.shape[1] // 2} positions to each side, and {furthest} are read")


def offset_bias(bias: Tensor, queries: int, keys: int) -> Tensor:
    """A table of offsets as (heads, queries, keys), the first query standing at the first key."""
    at = torch.arange(keys, device=bias.device) - torch.arange(queries, device=bias.device)[:, None]
    middle = bias.shape[1] // 2
    return bias[:, (at + middle).clamp(0, 2 * middle)]  # what lies outside is masked, or `check_reach` refused it
