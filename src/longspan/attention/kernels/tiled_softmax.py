"""Softmax over scores that are a sum of terms (Synthesizer), in tiles of rows that stay in cache.

The fused kernel supports one kind of score, the product of a query and a key. This one adds a table of positions and
the outer product of two factors of a row. The backward pass recomputes each tile, so that only the inputs are stored.
Scores that are products alone belong in `multi_source_softmax`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad

from longspan.attention.base import masked_softmax
from longspan.attention.buffers import Buffers
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.kernels.running import running_max
from longspan.attention.layouts import ceil_div, stream_queries
from longspan.attention.layouts.base import wide
from longspan.derivatives import Function, twice_differentiable

TILE = 1 << 19  # scores of one tile: fewer waste calls, more leave the cache; measured in benchmarks/attention.py
PLAIN_ROWS = 64  # rows of a chunk of the plain implementation, all heads at once


@dataclass(frozen=True)
class Terms:
    """The terms whose sum is the scores; each may be missing. `batch` may be 1 if all sequences share a term."""

    q: Tensor | None = None  # (batch, heads, rows, width), and
    k: Tensor | None = None  # (batch, heads, keys, width): q kᵀ
    table: Tensor | None = None  # (heads, positions, positions), indexed by row and key, times
    gain: Tensor | None = None  # one number, 1 if missing
    left: Tensor | None = None  # (batch, heads, rows, a), and
    right: Tensor | None = None  # (batch, heads, rows, c): key j has left[j // c] · right[j mod c]

    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.q, self.k, self.table, self.gain, self.left, self.right


def tiled(
    terms: Terms, v: Tensor, keep: Tensor | None, *, rows: int, causal: bool, dropout: float = 0.0, whole: bool = False
) -> Tensor:
    """softmax(sum of the terms) v for `rows` rows; if causal, they are at the last positions of `v`.

    `whole` computes all scores at once, for few rows. A row with nothing to read is 0.
    """
    keys = v.shape[2]
    first = keys - rows if causal else 0
    if whole or torch.compiler.is_compiling():
        return _plain(terms, v, keep, 0, rows, first, causal, dropout)
    if dropout:
        return stream_queries(
            lambda piece, begin: _plain(terms, v, keep, begin, piece.shape[2], first, causal, dropout),
            v[:, :, first:],
            rows=PLAIN_ROWS,
        )
    out: Tensor = _Tiled.apply((rows, first, causal, keep), v, *terms.tensors())
    if keep is None:
        return out
    alive = (running_max(keep, 1)[:, first:] if causal else keep.any(1, keepdim=True))[:, None, :, None]
    return out.masked_fill(~alive, 0.0)


def spans(rows: int, first: int, keys: int, causal: bool) -> Iterator[tuple[int, int, int]]:
    """(begin, end, keys read) of each tile of rows."""
    step = max(1, TILE // keys)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        yield begin, end, first + end if causal else keys


def _plain(
    terms: Terms, v: Tensor, keep: Tensor | None, begin: int, rows: int, first: int, causal: bool, dropout: float
) -> Tensor:
    """The rows from `begin` on with ordinary differentiable operations, all heads at once."""
    keys = torch.arange(v.shape[2], device=v.device)
    here = torch.arange(rows, device=v.device) + begin
    scores: Tensor | None = None
    if terms.q is not None and terms.k is not None:
        scores = terms.q.index_select(2, here).to(wide(v.dtype)) @ terms.k.to(wide(v.dtype)).mT
    if terms.table is not None:
        term = terms.table.index_select(1, here + first).index_select(2, keys)[None].to(wide(v.dtype))
        term = term if terms.gain is None else term * terms.gain
        scores = term if scores is None else scores + term
    if terms.left is not None and terms.right is not None:
        left, right = (x.index_select(2, here).to(wide(v.dtype)) for x in (terms.left, terms.right))
        term = (left[..., :, None] * right[..., None, :]).flatten(-2).index_select(-1, keys)
        scores = term if scores is None else scores + term
    assert scores is not None
    readable = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=v.device)
    if causal:
        readable = readable & (keys <= (here + first)[:, None])
    if keep is not None:
        readable = readable & keep[:, None, None, :]
    weights = masked_softmax(scores, readable.expand(-1, -1, rows, v.shape[2])).to(v.dtype)
    if dropout:  # each sequence has its own mask, even if all share the weights
        weights = weights.expand(v.shape[0], -1, -1, -1)
    return drop(weights, dropout, training=bool(dropout)) @ v


_Plan = tuple[int, int, bool, Tensor | None]  # rows, position of the first row, causal, keep


def _recompute(ctx: Any, saved: Sequence[Any]) -> tuple[Tensor, Sequence[Tensor | None]]:
    v, *terms = saved
    rows, first, causal, keep = ctx.plan
    return _plain(Terms(*terms), v, keep, 0, rows, first, causal, 0.0), (None, v, *terms)


class _Tiled(Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, v: Tensor, *terms: Tensor | None) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(v, *terms)
        out = v.new_empty(*v.shape[:2], plan[0], v.shape[3])
        for head in _heads(plan, v, terms):
            for begin, end, seen in spans(plan[0], plan[1], v.shape[2], plan[2]):
                out[head.index][begin:end] = head.weights(begin, end, seen) @ head.v[:seen]
        return out

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        v, *terms = ctx.saved_tensors
        rows, first, causal, _ = ctx.plan
        dv = torch.zeros_like(v, dtype=wide(v.dtype))
        wanted = ctx.needs_input_grad[2:]
        totals = [
            x.new_zeros(x.shape, dtype=wide(v.dtype)) if x is not None and want else None
            for x, want in zip(terms, wanted)
        ]
        for head in _heads(ctx.plan, v, terms):
            g_head = g[head.index].to(wide(v.dtype))
            gradients = head.select(totals)
            for begin, end, seen in spans(rows, first, v.shape[2], causal):
                weights, g_rows = head.weights(begin, end, seen), g_head[begin:end]
                dweights = torch.mm(g_rows, head.v[:seen].mT, out=head.buffer("dweights", end - begin, seen))
                dv[head.index][:seen].addmm_(weights.mT, g_rows)
                dscores = torch._softmax_backward_data(
                    dweights, weights, -1, weights.dtype, grad_input=head.buffer("dscores", end - begin, seen)
                )
                head.add_gradients(dscores, gradients, begin, end, seen)
        results = [None if t is None or x is None else t.to(x.dtype) for t, x in zip(totals, terms)]
        return None, dv.to(v.dtype), *results


def _heads(plan: _Plan, v: Tensor, terms: Sequence[Tensor | None]) -> Iterator["_Head"]:
    buffers = Buffers()
    for row in range(v.shape[0]):
        for head in range(v.shape[1]):
            yield _Head(row, head, plan, v, terms, buffers)


class _Head:
    """One head of one sequence: its matrices, and the buffers that all tiles share."""

    def __init__(
        self, row: int, head: int, plan: _Plan, v: Tensor, terms: Sequence[Tensor | None], buffers: Buffers
    ) -> None:
        self.index, self.buffers = (row, head), buffers
        _, self.first, self.causal, keep = plan
        self.blocked = None if keep is None else ~keep[row]
        self.v = v[row, head].to(wide(v.dtype))
        self.q, self.k, self.table, self.gain, self.left, self.right = self.select(terms)

    def select(self, tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
        """This head's part of each term."""
        row, head = self.index
        selected: list[Tensor | None] = []
        for x in tensors:
            if x is None or x.dim() == 0:
                selected.append(x)
            elif x.dim() == 3:
                selected.append(x[head])
            else:
                selected.append(x[row % x.shape[0], head])
        return selected

    def buffer(self, name: str, rows: int, width: int) -> Tensor:
        """A reused matrix."""
        return self.buffers(name, (rows, width), self.v.dtype, self.v.device)

    def weights(self, begin: int, end: int, seen: int) -> Tensor:
        scores = self._scores(begin, end, seen)
        return torch.softmax(scores, -1, out=self.buffer("weights", end - begin, seen))

    def _scores(self, begin: int, end: int, seen: int) -> Tensor:
        scores: Tensor | None = None
        rows, dtype = end - begin, self.v.dtype
        if self.left is not None and self.right is not None:
            scores = self._outer(self.left[begin:end].to(dtype), self.right[begin:end].to(dtype), seen)
        if self.q is not None and self.k is not None:
            q, k = self.q[begin:end].to(dtype), self.k[:seen].to(dtype)
            if scores is None:
                scores = torch.mm(q, k.mT, out=self.buffer("scores", rows, seen))
            else:
                torch.addmm(scores, q, k.mT, out=scores)
        if self.table is not None:
            term = self.table[self.first + begin : self.first + end, :seen].to(dtype)
            if scores is not None:
                scores = scores.add_(term) if self.gain is None else scores.addcmul_(term, self.gain.to(dtype))
            elif self.gain is not None:
                scores = torch.mul(term, self.gain.to(dtype), out=self.buffer("scores", rows, seen))
            elif self.causal or self.blocked is not None:  # a copy, as masks will be written to it
                scores = self.buffer("scores", rows, seen).copy_(term)
            else:
                scores = term
        assert scores is not None
        if self.causal:
            later = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu_(1)
            scores[:, seen - rows :].masked_fill_(later, BLOCKED)
        return scores if self.blocked is None else scores.masked_fill_(self.blocked[:seen], BLOCKED)

    def _outer(self, left: Tensor, right: Tensor, seen: int) -> Tensor:
        rows, width = right.shape
        used = ceil_div(seen, width)
        products = self.buffer("outer", rows, used * width)
        torch.mul(left[:, :used, None], right[:, None, :], out=products.view(rows, used, width))
        return products[:, :seen]

    def add_gradients(self, dscores: Tensor, gradients: list[Tensor | None], begin: int, end: int, seen: int) -> None:
        """Add the gradient of a tile of scores to the gradients of its terms."""
        dq, dk, dtable, dgain, dleft, dright = gradients
        dtype = dscores.dtype
        if self.k is not None and dq is not None:
            dq[begin:end].addmm_(dscores, self.k[:seen].to(dtype))
        if self.q is not None and dk is not None:
            dk[:seen].addmm_(dscores.mT, self.q[begin:end].to(dtype))
        if self.left is not None and self.right is not None:
            width = self.right.shape[1]
            used = ceil_div(seen, width)
            full = dscores if seen == used * width else pad(dscores, (0, used * width - seen))
            square = full.view(-1, used, width)
            if dleft is not None:
                dleft[begin:end, :used] += (square @ self.right[begin:end, :, None].to(dtype))[..., 0]
            if dright is not None:
                dright[begin:end] += (self.left[begin:end, None, :used].to(dtype) @ square)[:, 0]
        if self.table is not None:
            rows = slice(self.first + begin, self.first + end)
            if dgain is not None:
                dgain += (dscores * self.table[rows, :seen]).sum()
            if dtable is not None:
                target = dtable[rows, :seen]
                if self.gain is not None:
                    target.addcmul_(dscores, self.gain.to(dtype))
                else:
                    target.add_(dscores)
