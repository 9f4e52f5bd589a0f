"""Every stride-th past key (Sparse Transformer)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.kernels import flash
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts.base import Layout, blocked_where, ceil_div, pad_rows, products, wide


@dataclass(frozen=True)
class Strided(Layout):
    """Query i reads the keys i - stride · m for every m >= skip.

    The last query is at the last key, so past keys may precede the queries' own. The same as a causal `Dense` in a
    `Residue`, but without a copy: the residues are passed as the kernel's heads, which is a view of the sequence, and
    the kernel writes its results in the order in which it reads.
    """

    stride: int
    skip: int = 0
    rows = 256  # rows of a piece if a mask is needed

    @property
    def step(self) -> int:
        return self.stride

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        if torch.compiler.is_exporting():
            return self._exported_scores(q, k, keep, scale)
        lead, rows, known = self._sizes(q, k)
        scores = products(self._fold(q, lead, rows), self._fold(k, 0, known), scale)
        hidden = self._later(0, rows, known, known - rows, q.device)
        if keep is not None:
            hidden = hidden | ~self._fold_keep(keep, q.shape[1], known)
        return self._unfold(scores.masked_fill(hidden, BLOCKED), q, lead)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            read, _ = self._read(weights.shape[2], v)
            spread = weights.new_zeros(*weights.shape[:3], v.shape[2])
            return spread.scatter_add(-1, read.expand(*weights.shape[:2], -1, -1), weights) @ v
        lead, rows, known = self._sizes(weights, v)
        mixed = self._fold(weights, lead, rows) @ self._fold(v, 0, known)
        return self._unfold(mixed, weights, lead)

    def _exported_scores(self, q: Tensor, k: Tensor, keep: Tensor | None, scale: float) -> Tensor:
        """The same from the scores of all keys: an exporter cannot follow the strides of folded sequences."""
        read, hidden = self._read(q.shape[2], k)
        scores = products(q, k, scale)
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None], BLOCKED)
        return scores.gather(-1, read.expand(*q.shape[:2], -1, -1)).masked_fill(hidden, BLOCKED)

    def _read(self, queries: int, k: Tensor) -> tuple[Tensor, Tensor]:
        """The keys that each query reads, (queries, slots), one slot more than needed; and which slots are unused."""
        slots = torch.arange(self.skip, self.skip + ceil_div(k.shape[2], self.stride) + 1, device=k.device)
        at = torch.arange(queries, device=k.device) + (k.shape[2] - queries)
        read = at[:, None] - self.stride * slots
        return read.clamp_min(0), read < 0

    def part(self, begin: int, end: int, queries: int, keys: int) -> tuple[Layout, slice]:
        return self, slice(0, keys - queries + end)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        lead, rows, known = self._sizes(q, k)
        folded_q, folded_k, folded_v = self._fold(q, lead, rows), self._fold(k, 0, known), self._fold(v, 0, known)
        outs, lses = [], []
        for piece, keys, triangle, mask in self._pieces(q, k, keep):
            out, lse = flash.forward(
                folded_q[:, :, piece], folded_k[:, :, keys], folded_v[:, :, keys], scale, causal=triangle, mask=mask
            )
            outs.append(out)
            lses.append(lse)
        if not outs:
            return torch.zeros_like(q), q.new_full(q.shape[:3], BLOCKED, dtype=wide(q.dtype))
        out, lse = (parts[0] if len(parts) == 1 else torch.cat(parts, 2) for parts in (outs, lses))
        idle = rows - out.shape[2]  # the first rows, which have nothing to read
        if idle:
            out, lse = pad(out, (0, 0, idle, 0)), pad(lse, (idle, 0), value=BLOCKED)
        return self._unfold(out, q, lead), self._unfold(lse[..., None], q, lead)[..., 0]

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
        lead, rows, known = self._sizes(q, k)
        g, folded_q, out, lse = (self._fold(x, lead, rows) for x in (g, q, out, lse[..., None]))
        folded_k, folded_v = self._fold(k, 0, known), self._fold(v, 0, known)
        dq, dk, dv = (self._zeros(x) for x in (folded_q, folded_k, folded_v))
        for piece, keys, triangle, mask in self._pieces(q, k, keep):
            dq_part, dk_part, dv_part = flash.backward(
                g[:, :, piece],
                folded_q[:, :, piece],
                folded_k[:, :, keys],
                folded_v[:, :, keys],
                out[:, :, piece],
                lse[:, :, piece, 0],
                scale,
                causal=triangle,
                mask=mask,
            )
            dq[:, :, piece] = dq_part
            dk[:, :, keys] += dk_part
            dv[:, :, keys] += dv_part
        return self._unfold(dq, q, lead), self._unfold(dk, k, 0), self._unfold(dv, v, 0)

    def width(self, keys: int) -> int:
        return ceil_div(keys, self.stride)

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        past = keys - queries
        rows = ceil_div(past % self.stride + queries, self.stride)
        spans = self._spans(rows, past // self.stride)
        return heads * self.stride * sum((end - begin) * seen for begin, end, seen in spans)

    def _sizes(self, q: Tensor, k: Tensor) -> tuple[int, int, int]:
        """Positions before the first query in its row, rows of queries, rows of keys."""
        past = k.shape[2] - q.shape[2]
        lead = past % self.stride
        return lead, ceil_div(lead + q.shape[2], self.stride), ceil_div(k.shape[2], self.stride)

    def _fold(self, x: Tensor, lead: int, rows: int) -> Tensor:
        """(batch · heads, stride, rows, width): a view if the first and the last row are full.

        Padding on the right needs no mask: only padded queries are late enough to read it.
        """
        missing = rows * self.stride - lead - x.shape[2]
        if torch.compiler.is_compiling() or lead or missing:
            x = pad_rows(x, lead, missing)
        folded: Tensor = x.flatten(0, 1).unflatten(1, (rows, self.stride))
        return folded.transpose(1, 2)

    def _unfold(self, x: Tensor, like: Tensor, lead: int) -> Tensor:
        """The inverse: (batch, heads, length of `like`, width)."""
        length = like.shape[2]
        x = x.transpose(1, 2).flatten(1, 2).unflatten(0, like.shape[:2])
        if torch.compiler.is_compiling():  # a slice is specialised to lengths at which it is the whole tensor
            return x.index_select(2, torch.arange(lead, lead + length, device=x.device))
        return x if x.shape[2] == length else x[:, :, lead : lead + length].clone(memory_format=torch.contiguous_format)

    def _zeros(self, x: Tensor) -> Tensor:
        """Folded zeros that unfold to a view."""
        return x.new_zeros(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)

    def _fold_keep(self, keep: Tensor, heads: int, known: int) -> Tensor:
        """(batch · heads, stride, 1, rows)"""
        return self._fold(keep[:, None, :, None].expand(-1, heads, -1, -1), 0, known).mT

    def _later(self, begin: int, end: int, seen: int, past: int, device: torch.device) -> Tensor:
        """Which of the first `seen` rows of keys are too late for the rows begin..end of queries."""
        at = torch.arange(begin, end, device=device)[:, None] + past - self.skip
        return torch.arange(seen, device=device) > at

    def _spans(self, rows: int, past: int) -> list[tuple[int, int, int]]:
        """(first and last row of queries, rows of keys within reach) of each fused call."""
        if past <= self.skip:  # the rest is a square, for which the kernel has a causal mask
            begin = self.skip - past
            return [(begin, rows, rows - begin)] if begin < rows else []
        pieces = ((begin, min(begin + self.rows, rows)) for begin in range(0, rows, self.rows))
        return [(begin, end, end + past - self.skip) for begin, end in pieces]

    def _pieces(self, q: Tensor, k: Tensor, keep: Tensor | None) -> Iterator[tuple[slice, slice, bool, Tensor | None]]:
        """(rows of queries, rows of keys, whether the kernel's causal mask applies, added mask)"""
        _, rows, known = self._sizes(q, k)
        past = known - rows
        padding = None if keep is None else blocked_where(~self._fold_keep(keep, q.shape[1], known), q)
        for begin, end, seen in self._spans(rows, past):
            triangle = past <= self.skip
            mask = None if padding is None else padding[..., :seen]
            if not triangle:
                later = blocked_where(self._later(begin, end, seen, past, q.device), q)
                mask = later[None, None] if mask is None else mask + later
            yield slice(begin, end), slice(0, seen), triangle, mask
