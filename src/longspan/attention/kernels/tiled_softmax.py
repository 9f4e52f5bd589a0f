"""Softmax over scores that are a sum of terms, in tiles of rows that stay in cache; nothing of the scores is kept.

The fused kernel knows one kind of score, the product of a query and a key. Here are the others: a table from position
to position, and the outer product of two factors of a row. The backward pass makes each tile again, so that only the
inputs are kept. Whatever can be written as products alone belongs in `joint.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import pad

from longspan.attention.base import masked_softmax
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts import ceil_div, stream_queries
from longspan.attention.layouts.base import wide
from longspan.derivatives import twice_differentiable

TILE = 1 << 19  # scores of one tile: fewer waste calls, more leave the cache; measured in benchmarks/attention.py
PLAIN_ROWS = 64  # rows of a piece of the plain way, all heads at once


@dataclass(frozen=True)
class Terms:
    """What the scores are the sum of; terms may be missing. `batch` may be 1 where all sequences share a term."""

    q: Tensor | None = None  # (batch, heads, rows, width), and
    k: Tensor | None = None  # (batch, heads, keys, width): q kᵀ
    table: Tensor | None = None  # (heads, places, places), rows and keys by their places, times
    gain: Tensor | None = None  # one number, 1 where missing
    left: Tensor | None = None  # (batch, heads, rows, a), and
    right: Tensor | None = None  # (batch, heads, rows, c): key j has left[j // c] · right[j mod c]

    def tensors(self) -> tuple[Tensor | None, ...]:
        return self.q, self.k, self.table, self.gain, self.left, self.right


def tiled(
    terms: Terms, v: Tensor, keep: Tensor | None, *, rows: int, causal: bool, dropout: float = 0.0, whole: bool = False
) -> Tensor:
    """softmax(sum of the terms) v for `rows` rows, which if causal are the last of the places that `v` has.

    `whole` makes all scores at once, for few rows. A row with nothing to read is 0.
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
    out = _Tiled.apply((rows, first, causal, keep), v, *terms.tensors())
    if keep is None:
        return out
    alive = (keep.cummax(1).values[:, first:] if causal else keep.any(1, keepdim=True))[:, None, :, None]
    return out.masked_fill(~alive, 0.0)


def spans(rows: int, first: int, keys: int, causal: bool) -> Iterator[tuple[int, int, int]]:
    """(begin, end, keys that are looked at) of each tile of rows."""
    step = max(1, TILE // keys)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        yield begin, end, first + end if causal else keys


def _plain(
    terms: Terms, v: Tensor, keep: Tensor | None, begin: int, rows: int, first: int, causal: bool, dropout: float
) -> Tensor:
    """The rows from `begin` on by ordinary differentiable operations, all heads at once."""
    places = torch.arange(v.shape[2], device=v.device)
    here = torch.arange(rows, device=v.device) + begin
    scores: Tensor | None = None
    if terms.q is not None and terms.k is not None:
        scores = terms.q.index_select(2, here).to(wide(v.dtype)) @ terms.k.to(wide(v.dtype)).mT
    if terms.table is not None:
        part = terms.table.index_select(1, here + first).index_select(2, places)[None].to(wide(v.dtype))
        part = part if terms.gain is None else part * terms.gain
        scores = part if scores is None else scores + part
    if terms.left is not None and terms.right is not None:
        left, right = (x.index_select(2, here).to(wide(v.dtype)) for x in (terms.left, terms.right))
        part = (left[..., :, None] * right[..., None, :]).flatten(-2).index_select(-1, places)
        scores = part if scores is None else scores + part
    assert scores is not None
    may = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=v.device)
    if causal:
        may = may & (places <= (here + first)[:, None])
    if keep is not None:
        may = may & keep[:, None, None, :]
    weights = masked_softmax(scores, may.expand(-1, -1, rows, v.shape[2])).to(v.dtype)
    if dropout:  # each sequence drops its own, also where they share the weights
        weights = weights.expand(v.shape[0], -1, -1, -1)
    return drop(weights, dropout, training=bool(dropout)) @ v


_Plan = tuple[int, int, bool, Tensor | None]  # rows, place of the first row, causal, keep


def _again(ctx: Any, saved: Sequence[Any]) -> tuple[Tensor, Sequence[Tensor | None]]:
    v, *given = saved
    rows, first, causal, keep = ctx.plan
    return _plain(Terms(*given), v, keep, 0, rows, first, causal, 0.0), (None, v, *given)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Plan, v: Tensor, *given: Tensor | None) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(v, *given)
        out = v.new_empty(*v.shape[:2], plan[0], v.shape[3])
        for head in _heads(plan, v, given):
            for begin, end, seen in spans(plan[0], plan[1], v.shape[2], plan[2]):
                out[head.index][begin:end] = head.weights(begin, end, seen) @ head.v[:seen]
        return out

    @staticmethod
    @twice_differentiable(_again)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        v, *given = ctx.saved_tensors
        rows, first, causal, _ = ctx.plan
        dv = torch.zeros_like(v, dtype=wide(v.dtype))
        wanted = ctx.needs_input_grad[2:]
        totals = [
            x.new_zeros(x.shape, dtype=wide(v.dtype)) if x is not None and want else None
            for x, want in zip(given, wanted)
        ]
        for head in _heads(ctx.plan, v, given):
            towards = g[head.index].to(wide(v.dtype))
            gradients = head.own(totals)
            for begin, end, seen in spans(rows, first, v.shape[2], causal):
                weights, part = head.weights(begin, end, seen), towards[begin:end]
                upward = torch.mm(part, head.v[:seen].mT, out=head.room("upward", end - begin, seen))
                dv[head.index][:seen].addmm_(weights.mT, part)
                scores = torch._softmax_backward_data(
                    upward, weights, -1, weights.dtype, grad_input=head.room("downward", end - begin, seen)
                )
                head.hand_on(scores, gradients, begin, end, seen)
        results = [None if t is None or x is None else t.to(x.dtype) for t, x in zip(totals, given)]
        return None, dv.to(v.dtype), *results


def _heads(plan: _Plan, v: Tensor, given: Any) -> Iterator["_Head"]:
    rooms: dict[str, Tensor] = {}
    for row in range(v.shape[0]):
        for head in range(v.shape[1]):
            yield _Head(row, head, plan, v, given, rooms)


class _Head:
    """One head of one sequence: matrices, and the room that all of its tiles share."""

    def __init__(self, row: int, head: int, plan: _Plan, v: Tensor, given: Any, rooms: dict[str, Tensor]) -> None:
        self.index, self.rooms = (row, head), rooms
        _, self.first, self.causal, keep = plan
        self.blocked = None if keep is None else ~keep[row]
        self.v = v[row, head].to(wide(v.dtype))
        self.q, self.k, self.table, self.gain, self.left, self.right = self.own(given)

    def own(self, tensors: Any) -> list[Tensor | None]:
        """The part of each term that is this head's."""
        row, head = self.index
        parts: list[Tensor | None] = []
        for x in tensors:
            if x is None or x.dim() == 0:
                parts.append(x)
            elif x.dim() == 3:
                parts.append(x[head])
            else:
                parts.append(x[row % x.shape[0], head])
        return parts

    def room(self, name: str, rows: int, width: int) -> Tensor:
        """A matrix to write to, the same memory every time: fresh pages cost more than the arithmetic."""
        have = self.rooms.get(name)
        if have is None or have.numel() < rows * width:
            have = self.rooms[name] = self.v.new_empty(rows * width)
        return have[: rows * width].view(rows, width)

    def weights(self, begin: int, end: int, seen: int) -> Tensor:
        scores = self._scores(begin, end, seen)
        return torch.softmax(scores, -1, out=self.room("weights", end - begin, seen))

    def _scores(self, begin: int, end: int, seen: int) -> Tensor:
        scores: Tensor | None = None
        rows, dtype = end - begin, self.v.dtype
        if self.left is not None and self.right is not None:
            scores = self._outer(self.left[begin:end].to(dtype), self.right[begin:end].to(dtype), seen)
        if self.q is not None and self.k is not None:
            q, k = self.q[begin:end].to(dtype), self.k[:seen].to(dtype)
            if scores is None:
                scores = torch.mm(q, k.mT, out=self.room("scores", rows, seen))
            else:
                torch.addmm(scores, q, k.mT, out=scores)
        if self.table is not None:
            part = self.table[self.first + begin : self.first + end, :seen].to(dtype)
            if scores is not None:
                scores = scores.add_(part) if self.gain is None else scores.addcmul_(part, self.gain.to(dtype))
            elif self.gain is not None:
                scores = torch.mul(part, self.gain.to(dtype), out=self.room("scores", rows, seen))
            elif self.causal or self.blocked is not None:  # which will be written to
                scores = self.room("scores", rows, seen).copy_(part)
            else:
                scores = part
        assert scores is not None
        if self.causal:
            later = torch.ones(rows, rows, dtype=torch.bool, device=scores.device).triu_(1)
            scores[:, seen - rows :].masked_fill_(later, BLOCKED)
        return scores if self.blocked is None else scores.masked_fill_(self.blocked[:seen], BLOCKED)

    def _outer(self, left: Tensor, right: Tensor, seen: int) -> Tensor:
        rows, width = right.shape
        used = ceil_div(seen, width)
        room = self.room("outer", rows, used * width)
        torch.mul(left[:, :used, None], right[:, None, :], out=room.view(rows, used, width))
        return room[:, :seen]

    def hand_on(self, scores: Tensor, gradients: list[Tensor | None], begin: int, end: int, seen: int) -> None:
        """Adds the gradient of a tile of scores to those of its terms."""
        dq, dk, dtable, dgain, dleft, dright = gradients
        dtype = scores.dtype
        if self.k is not None and dq is not None:
            dq[begin:end].addmm_(scores, self.k[:seen].to(dtype))
        if self.q is not None and dk is not None:
            dk[:seen].addmm_(scores.mT, self.q[begin:end].to(dtype))
        if self.left is not None and self.right is not None:
            width = self.right.shape[1]
            used = ceil_div(seen, width)
            full = scores if seen == used * width else pad(scores, (0, used * width - seen))
            square = full.view(-1, used, width)
            if dleft is not None:
                dleft[begin:end, :used] += (square @ self.right[begin:end, :, None].to(dtype))[..., 0]
            if dright is not None:
                dright[begin:end] += (self.left[begin:end, None, :used].to(dtype) @ square)[:, 0]
        if self.table is not None:
            place = slice(self.first + begin, self.first + end)
            if dgain is not None:
                dgain += (scores * self.table[place, :seen]).sum()
            if dtable is not None:
                target = dtable[place, :seen]
                if self.gain is not None:
                    target.addcmul_(scores, self.gain.to(dtype))
                else:
                    target.add_(scores)
