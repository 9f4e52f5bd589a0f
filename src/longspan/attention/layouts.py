"""Layouts: where the keys of each query lie, and how to reach them without an n × n tensor.

A mechanism of the pattern family is a union of *sources* of keys, each with a layout, under one softmax (see
`joint.py`). A layout knows two ways to the same numbers:

- plain: `scores` of every query with its keys, (batch, heads, queries, width), and `mix` of weights with values. It is
  made of ordinary differentiable operations: dropout, learned biases, compilers and other devices use it.
- fused: `forward` and `backward` over torch's CPU kernel in pieces that stay in cache. Nothing of the scores is kept.

The names K1–K8 are those of the specification the project grew from.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from longspan.attention import flash
from longspan.attention.flash import BLOCKED
from longspan.errors import InvalidInput

PIECE = 1 << 20  # numbers of gathered keys, or of a mask, that one fused call may hold: about what caches hold


class Layout(ABC):
    """`keep` is (batch, keys) or None; `bias` is (heads, offsets) with offset 0 in the middle, or None."""

    takes_bias = False

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
    def pairs(self, queries: int, keys: int) -> int:
        """How many query-key products the fused way computes per head."""


@dataclass(frozen=True)
class Dense(Layout):
    """Every query reads every key of its source, or, if causal, those at and before its own index (K7).

    With `causal` the last query stands at the last key, so keys of the past may come before those of the queries.
    """

    causal: bool = False
    takes_bias = True
    rows = 256  # queries of a piece where a mask has to be made

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        return add(products(q, k, scale), self._mask(0, q.shape[2], q, k, keep, bias, self.causal))

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return weights @ v

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
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
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
            gradients.append(dq)
            dk[:, :, keys] += dk_part
            dv[:, :, keys] += dv_part
        return torch.cat(gradients, 2), dk, dv

    def pairs(self, queries: int, keys: int) -> int:
        return queries * keys

    def _pieces(
        self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None
    ) -> Iterator[tuple[slice, slice, bool, Tensor | None]]:
        """(queries, keys, whether the kernel's own triangle serves, added mask)"""
        queries, keys = q.shape[2], k.shape[2]
        past = keys - queries
        square = self.causal and past == 0
        if bias is None and (square or not self.causal or queries == 1):
            # Padding is one row of the mask: the kernel broadcasts it over queries, also under its triangle.
            yield slice(0, queries), slice(0, keys), square and queries > 1, blocked(keep, q)
            return
        for begin in range(0, queries, self.rows):
            end = min(begin + self.rows, queries)
            seen = past + end if self.causal else keys
            mask = self._mask(
                begin, end, q, k[:, :, :seen], None if keep is None else keep[:, :seen], bias, self.causal, past
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
        past: int | None = None,
    ) -> Tensor | None:
        """What is added to the scores of queries begin..end with the keys k: (batch, heads, rows, keys), broadcast."""
        keys = k.shape[2]
        past = keys - q.shape[2] if past is None else past
        mask = blocked(keep, q)
        if bias is not None or causal:
            at = torch.arange(begin, end, device=q.device)[:, None] + past
            offsets = torch.arange(keys, device=q.device) - at
            if bias is not None:
                mask = add(bias[:, offsets + bias.shape[1] // 2][None], mask)
            if causal:
                mask = add(blocked_where(offsets > 0, q), mask)
        return mask


@dataclass(frozen=True)
class Residue(Layout):
    """Positions of one residue modulo `stride` form a sequence of their own, laid out by `inner` (K5).

    A causal `Dense` inside gives every stride-th key of the past; a `Band` inside, a dilated window.
    """

    stride: int
    inner: Layout

    @property
    def takes_bias(self) -> bool:  # type: ignore[override]
        return self.inner.takes_bias

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        folded_q, folded_k = self._fold(q, k)
        inside = self.inner.scores(folded_q, folded_k, self._keep(k, keep), self._bias(bias), scale)
        return unfold_residues(inside, self.stride, q.shape[2])

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        return unfold_residues(self.inner.mix(*self._fold(weights, v)), self.stride, weights.shape[2])

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        folded_q, folded_k, folded_v = self._fold(q, k, v)
        out, lse = self.inner.forward(folded_q, folded_k, folded_v, self._keep(k, keep), self._bias(bias), scale)
        return (
            unfold_residues(out, self.stride, q.shape[2]),
            unfold_residues(lse[..., None], self.stride, q.shape[2])[..., 0],
        )

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
        folded_g, folded_q, folded_k, folded_v, folded_out, folded_lse = self._fold(g, q, k, v, out, lse[..., None])
        gradients = self.inner.backward(
            folded_g,
            folded_q,
            folded_k,
            folded_v,
            self._keep(k, keep),
            self._bias(bias),
            folded_out,
            folded_lse[..., 0],
            scale,
        )
        dq, dk, dv = (unfold_residues(x, self.stride, k.shape[2]) for x in gradients)
        return dq, dk, dv

    def pairs(self, queries: int, keys: int) -> int:
        return self.stride * self.inner.pairs(-(-queries // self.stride), -(-keys // self.stride))

    def _fold(self, *tensors: Tensor) -> list[Tensor]:
        return [fold_residues(x, self.stride) for x in tensors]

    def _keep(self, k: Tensor, keep: Tensor | None) -> Tensor | None:
        """Padding, and the positions that were added on the right to fill the last row."""
        batch, keys = k.shape[0], k.shape[2]
        if keep is None:
            if keys % self.stride == 0:
                return None
            keep = torch.ones(batch, keys, dtype=torch.bool, device=k.device)
        return fold_residues(keep[:, None, :, None], self.stride)[:, 0, :, 0]

    def _bias(self, bias: Tensor | None) -> Tensor | None:
        """The offsets that are multiples of the stride; offset 0 stays in the middle."""
        return None if bias is None else bias[:, bias.shape[1] // 2 % self.stride :: self.stride]


def fold_residues(x: Tensor, stride: int) -> Tensor:
    """(batch, heads, length, width) -> (batch · stride, heads, length / stride, width), padded on the right."""
    x = pad(x, (0, 0, 0, -x.shape[2] % stride))
    return x.unflatten(2, (x.shape[2] // stride, stride)).permute(0, 3, 1, 2, 4).flatten(0, 1).contiguous()


def unfold_residues(x: Tensor, stride: int, length: int) -> Tensor:
    """The inverse of `fold_residues`."""
    return x.unflatten(0, (x.shape[0] // stride, stride)).permute(0, 2, 3, 1, 4).flatten(2, 3)[:, :, :length]


@dataclass(frozen=True, eq=False)
class Blocks(Layout):
    """Query block b of head h reads the key blocks `table[h, b]`, -1 standing for none (K2).

    A block that stands twice in a row of the table is read twice: who makes the table sees to that.
    """

    table: Tensor  # (heads or 1, query blocks, slots), integers
    block: int

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        heads, queries = q.shape[1], q.shape[2]
        gathered = self._gather(self._split(k), heads).flatten(3, 4)
        scores = products(self._split(q), gathered, scale)
        valid = self._valid(k, keep)
        scores = scores.masked_fill(~self._gather(valid, heads)[..., 0].flatten(3, 4)[:, :, :, None], BLOCKED)
        scores = scores.masked_fill(~(self.table >= 0).repeat_interleave(self.block, -1)[None, :, :, None], BLOCKED)
        return scores.flatten(2, 3)[:, :, :queries]

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        blocks = self._split(weights)
        return (blocks @ self._gather(self._split(v), weights.shape[1]).flatten(3, 4)).flatten(2, 3)[
            :, :, : weights.shape[2]
        ]

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        blocks, keys, values = self._split(q), self._split(k), self._split(v)
        valid = self._valid(k, keep)
        out, lse = torch.empty_like(blocks), blocks.new_empty(blocks.shape[:4], dtype=wide(q.dtype))
        for head, run, index, mask in self._runs(blocks, valid):
            part, part_lse = flash.forward(
                blocks[:, head, run], _take(keys, head, index), _take(values, head, index), scale, mask=mask
            )
            out[:, head, run], lse[:, head, run] = part, part_lse
        return out.flatten(2, 3)[:, :, : q.shape[2]], lse.flatten(2, 3)[:, :, : q.shape[2]]

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
        keys, values = self._split(k), self._split(v)
        rows = [self._split(x) for x in (g, q, out, lse[..., None])]
        valid = self._valid(k, keep)
        dq, dk, dv = torch.empty_like(rows[1]), torch.zeros_like(keys), torch.zeros_like(values)
        for head, run, index, mask in self._runs(rows[1], valid):
            part_g, part_q, part_out, part_lse = (x[:, head, run] for x in rows)
            found_k, found_v = _take(keys, head, index), _take(values, head, index)
            dq_part, dk_part, dv_part = flash.backward(
                part_g, part_q, found_k, found_v, part_out, part_lse[..., 0], scale, mask=mask
            )
            dq[:, head, run] = dq_part
            for total, part in ((dk, dk_part), (dv, dv_part)):
                pieces = part.unflatten(2, (index.shape[1], self.block)).flatten(1, 2)
                total[:, head].index_add_(1, index.flatten(), pieces)
        return (
            dq.flatten(2, 3)[:, :, : q.shape[2]],
            dk.flatten(2, 3)[:, :, : k.shape[2]],
            dv.flatten(2, 3)[:, :, : v.shape[2]],
        )

    def pairs(self, queries: int, keys: int) -> int:
        return -(-queries // self.block) * self.block * self.table.shape[2] * self.block

    def _split(self, x: Tensor) -> Tensor:
        """(batch, heads, blocks, block, width)"""
        x = pad(x, (0, 0, 0, -x.shape[2] % self.block))
        return x.unflatten(2, (x.shape[2] // self.block, self.block))

    def _valid(self, k: Tensor, keep: Tensor | None) -> Tensor:
        """(batch or 1, 1, key blocks, block, 1)"""
        if keep is None:
            keep = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device)
        return self._split(keep[:, None, :, None])

    def _gather(self, blocks: Tensor, heads: int) -> Tensor:
        """(batch, heads, query blocks, slots, block, width)"""
        table = self.table.clamp_min(0).expand(heads, -1, -1)
        blocks = blocks.expand(-1, heads, -1, -1, -1)
        which = torch.arange(heads, device=table.device)[:, None, None]
        return blocks[:, which, table]

    def _runs(self, q: Tensor, valid: Tensor) -> Iterator[tuple[int, slice, Tensor, Tensor]]:
        """(head, query blocks, key blocks of each, added mask): as many query blocks as stay in cache."""
        batch, heads, count, block, width = q.shape
        slots = self.table.shape[2]
        together = max(1, PIECE // (batch * slots * block * width))
        for head in range(heads):
            table = self.table[head % self.table.shape[0]]
            for begin in range(0, count, together):
                run = slice(begin, min(begin + together, count))
                index = table[run]
                read = valid[:, 0].index_select(1, index.clamp_min(0).flatten()).unflatten(1, index.shape)[..., 0]
                read = read & (index >= 0)[None, :, :, None]
                yield head, run, index.clamp_min(0), blocked_where(~read, q).flatten(2, 3)[:, :, None]


def _take(blocks: Tensor, head: int, index: Tensor) -> Tensor:
    """(batch, query blocks, slots · block, width): the key blocks `index` (query blocks, slots) of one head."""
    return blocks[:, head].index_select(1, index.flatten()).unflatten(1, index.shape).flatten(2, 3)


def fold_axis(x: Tensor, axes: tuple[int, ...], axis: int) -> Tensor:
    """Attention along one axis of a grid: the other axes go into the batch (K6).

    (batch, heads, product of axes, width) -> (batch · others, heads, axes[axis], width)
    """
    grid = x.unflatten(2, axes).movedim(2 + axis, -2)  # batch heads others… axis width
    return grid.movedim(1, -3).flatten(0, -4)


def unfold_axis(x: Tensor, axes: tuple[int, ...], axis: int) -> Tensor:
    """The inverse of `fold_axis`."""
    others = axes[:axis] + axes[axis + 1 :]
    grid = x.unflatten(0, (x.shape[0] // math.prod(others), *others)).movedim(-3, 1)
    return grid.movedim(-2, 2 + axis).flatten(2, -2)


def stream_queries(attend: Callable[[Tensor, int], Tensor], q: Tensor, rows: int = 256) -> Tensor:
    """`attend(piece of q, index of its first row)` over pieces of the queries, recomputed in the backward pass (K7)."""
    pieces = []
    for begin in range(0, q.shape[2], rows):
        piece = q[:, :, begin : begin + rows]
        if torch.is_grad_enabled():
            pieces.append(checkpoint(attend, piece, begin, use_reentrant=False))
        else:
            pieces.append(attend(piece, begin))
    return torch.cat(pieces, dim=2)


def relative_scores(q: Tensor, table: Tensor) -> Tensor:
    """The relative term q_a · r_(offset) inside a chunk, by one matrix product and a skew (K8).

    q is (…, rows, width) and table (…, rows + keys - 1, width), whose row t belongs to the offset
    key - query = t - (rows - 1); the result is (…, rows, keys).
    """
    rows = q.shape[-2]
    return skew(q @ table.mT, table.shape[-2] - rows + 1)


def skew(x: Tensor, keys: int) -> Tensor:
    """out[a, c] = x[a, c - a + rows - 1] for x (…, rows, rows + keys - 1): every row moved one further to the left."""
    rows, length = x.shape[-2], x.shape[-1]
    # One more column makes the flattened rows start one later each time: dropping rows - 1 numbers aligns row 0.
    flat = pad(x, (0, 1)).flatten(-2)[..., rows - 1 :]
    flat = (
        flat[..., : rows * length]
        if flat.shape[-1] >= rows * length
        else pad(flat, (0, rows * length - flat.shape[-1]))
    )
    return flat.unflatten(-1, (rows, length))[..., :keys]


def check_reach(bias: Tensor, furthest: int) -> None:
    """Refuse a table that ends before the furthest offset that will be read."""
    if bias.shape[1] // 2 < furthest:
        raise InvalidInput(f"bias reaches {bias.shape[1] // 2} positions to each side, and {furthest} are read")


def offset_bias(bias: Tensor, queries: int, keys: int) -> Tensor:
    """A table of offsets as (heads, queries, keys), the first query standing at the first key."""
    at = torch.arange(keys, device=bias.device) - torch.arange(queries, device=bias.device)[:, None]
    return bias[:, at + bias.shape[1] // 2]


def products(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Scaled scores, in float32 at least."""
    return (q * scale @ k.mT).to(wide(q.dtype))


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def blocked(keep: Tensor | None, like: Tensor) -> Tensor | None:
    return None if keep is None else blocked_where(~keep, like)[:, None, None, :]


def blocked_where(blocked: Tensor, like: Tensor) -> Tensor:
    zeros = torch.zeros(blocked.shape, dtype=wide(like.dtype), device=blocked.device)
    return zeros.masked_fill_(blocked, BLOCKED)


def add(a: Tensor, b: Tensor | None) -> Tensor:
    return a if b is None else a + b
