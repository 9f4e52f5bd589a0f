"""Every query reads every key of its source, or every key up to itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longspan.attention.kernels import flash
from longspan.attention.layouts.base import Layout, add, blocked, blocked_where, products, wide


@dataclass(frozen=True)
class Dense(Layout):
    """Every query reads every key of its source, or, if causal, the keys up to its own index.

    With `causal` the last query is at the last key, so past keys may precede the queries' own. `keep` may differ by
    head: (batch, heads, keys).
    """

    causal: bool = False
    past: int | None = None  # keys before the first query's own, if not keys - queries
    takes_bias = True
    step = 1
    rows = 256  # queries of a piece if a mask is needed

    @property
    def rows_alike(self) -> bool:
        return not self.causal

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        past = self._past(q.shape[2], k.shape[2])
        return add(products(q, k, scale), self._mask(0, q.shape[2], q, k, keep, bias, self.causal, past))

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple[Layout, slice]:
        past = self._past(queries, keys)
        seen = min(keys, max(1, past + end)) if self.causal else keys  # at least one key, masked if need be
        return Dense(self.causal, past + begin), slice(0, seen)

    def _past(self, queries: int, keys: int) -> int:
        if self.past is not None:
            return self.past
        return keys - queries if self.causal else 0

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

    def along(self, x: Tensor, queries: int) -> Tensor:
        """A value per key (batch, keys) in the layout of the scores: (batch, 1, keys), for all queries."""
        return x[:, None, :]

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        pieces = [
            flash.forward(q[:, :, rows], k[:, :, keys], v[:, :, keys], scale, causal=triangle, mask=mask)
            for rows, keys, triangle, mask in self._pieces(q, k, keep, bias)
        ]
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat([out for out, _ in pieces], 2), torch.cat([lse for _, lse in pieces], 2)

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
        gradients = []
        dk = dv = None
        for rows, keys, triangle, mask in self._pieces(q, k, keep, bias):
            dq, dk_part, dv_part = flash.backward(
                g[:, :, rows],
                q[:, :, rows],
                k[:, :, keys],
                v[:, :, keys],
                out[:, :, rows],
                lse[:, :, rows],
                scale,
                causal=triangle,
                mask=mask,
            )
            if rows == slice(0, q.shape[2]) and keys == slice(0, k.shape[2]):  # one piece is all of it
                return dq, dk_part, dv_part
            if dk is None or dv is None:
                dk, dv = torch.zeros_like(k), torch.zeros_like(v)
            gradients.append(dq)
            dk[:, :, keys] += dk_part
            dv[:, :, keys] += dv_part
        assert dk is not None and dv is not None
        return torch.cat(gradients, 2), dk, dv

    def width(self, keys: int) -> int:
        return keys

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * queries * keys

    def _pieces(
        self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None
    ) -> Iterator[tuple[slice, slice, bool, Tensor | None]]:
        """(queries, keys, whether the kernel's causal mask applies, added mask)"""
        queries, keys = q.shape[2], k.shape[2]
        past = self._past(queries, keys)
        square = self.causal and past == 0
        if bias is None and (square or not self.causal or (queries == 1 and past + 1 >= keys)):
            # Padding is one row of the mask: the kernel broadcasts it over queries, also with its causal mask.
            yield slice(0, queries), slice(0, keys), square and queries > 1, blocked(keep, q)
            return
        for begin in range(0, queries, self.rows):
            end = min(begin + self.rows, queries)
            seen = max(1, past + end) if self.causal else keys  # the kernel needs a key, even a masked one
            mask = self._mask(
                begin, end, q, k[:, :, :seen], None if keep is None else keep[..., :seen], bias, self.causal, past
            )
            yield slice(begin, end), slice(0, seen), False, mask

    @staticmethod
    def _mask(
        begin: int,
        end: int,
        q: Tensor,
        k: Tensor,
        keep: Tensor | None,
        bias: Tensor | None,
        causal: bool,
        past: int,
    ) -> Tensor | None:
        """The mask to add to the scores of queries begin..end with k: broadcasts to (batch, heads, rows, keys)."""
        keys = k.shape[2]
        mask = blocked(keep, q)
        if bias is not None or causal:
            at = torch.arange(begin, end, device=q.device)[:, None] + past
            offsets = torch.arange(keys, device=q.device) - at
            if bias is not None:
                mask = add(bias.to(wide(q.dtype))[:, offsets + bias.shape[1] // 2][None], mask)
            if causal:
                mask = add(blocked_where(offsets > 0, q), mask)
        return mask


def stream_queries(attend: Callable[[Tensor, int], Tensor], q: Tensor, rows: int = 256) -> Tensor:
    """`attend(piece of q, index of its first row)` for pieces of the queries, recomputed in the backward pass."""
    if torch.compiler.is_compiling():  # a loop would fix the length
        return attend(q, 0)
    pieces = []
    for begin in range(0, q.shape[2], rows):
        piece = q[:, :, begin : begin + rows]
        if torch.is_grad_enabled():
            pieces.append(checkpoint(attend, piece, begin, use_reentrant=False))
        else:
            pieces.append(attend(piece, begin))
    return torch.cat(pieces, dim=2)
