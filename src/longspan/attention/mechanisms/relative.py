"""Relative attention of Transformer-XL (Dai et al. 2019, section 3.3): heads in, heads out, memory in front.

    A_ij = (q_i + u)ᵀ k_j + (q_i + w)ᵀ W_R r_(i-j)

is the score of a query at position i for a key at position j ≤ i: a term for the content of the key and one for its
distance (the paper's second bias, v, is called w here). The queries belong to the last keys; earlier keys are memory.

This is not a registered mechanism: the contract's causal form has as many queries as keys. It is the engine of
`nn/memory_layer.py`.

The second term needs no (queries, keys, head_dim) tensor: (q + w) Rᵀ is one product per piece of queries, with its
columns ordered from the largest distance down to 0 and on to the future. The next query's row is then shifted by one
column, so the scores are a strided view of the product (appendix B gets there by padding and reshaping). The future,
and keys beyond a window, are whole columns, which are blocked before the shift instead of masked after it.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.attention.base import Cost, masked_softmax
from longspan.attention.devices import on_cpu
from longspan.attention.kernels import flash
from longspan.attention.kernels.flash import DEAD
from longspan.attention.kernels.flash_dropout import BLOCKED
from longspan.attention.parts.dropout_masks import DropoutMasks
from longspan.derivatives import refuse_second, twice_differentiable
from longspan.precision import autocast_type, full_precision, rounded
from longspan.shapes import Keys, Output, Queries, Values, Weights

Distances = Float[Tensor, "heads distances head_dim"]  # W_R r_t for t = 0, 1, 2, …
HeadBias = Float[Tensor, "heads head_dim"]
Ages = Int[Tensor, "rows memory"]  # distance of each memory key from the first query; rows: batch or 1
Keep = Bool[Tensor, "batch keys"]

LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453  # powers of 2: torch's exp is slow where it underflows
PIECE = 1 << 19  # scores at a time, so that they stay in cache
ROWS = 64  # queries at a time, if that many fit


def attend(
    q: Queries,
    k: Keys,
    v: Values,
    r: Distances,
    u: HeadBias,
    w: HeadBias,
    *,
    keep: Keep | None = None,
    window: int | None = None,
    ages: Ages | None = None,
    dropout: float = 0.0,
) -> Output:
    """Attention of the last `queries` positions to all keys up to their own, or to the nearest `window` of those.

    `ages` gives the distances of memory keys if they are not consecutive. A row with nothing to read is 0.
    """
    if torch.compiler.is_compiling():  # a loop over pieces would fix the lengths of a traced graph
        probabilities = weights(q, k, r, u, w, keep=keep, window=window, ages=ages)
        return torch.nn.functional.dropout(probabilities, dropout) @ v
    half = autocast_type(q.device)
    if half is not None:
        q, k, v, r = (rounded(x, half) for x in (q, k, v, r))
    scale = 1 / math.sqrt(q.shape[-1])
    content, position = (((q + bias[:, None]) * scale).to(q.dtype) for bias in (u, w))
    with full_precision(q):
        out: Tensor = _Relative.apply(content, position, k, v, r, keep, window, ages, dropout)  # type: ignore[no-untyped-call, unused-ignore]
    return out


def weights(
    q: Queries,
    k: Keys,
    r: Distances,
    u: HeadBias,
    w: HeadBias,
    *,
    keep: Keep | None = None,
    window: int | None = None,
    ages: Ages | None = None,
) -> Weights:
    """The weights as the paper defines them, O(queries · keys)."""
    distance, readable = _pairs(q, k, keep, window, ages)
    scale = 1 / math.sqrt(q.shape[-1])
    return _plain_weights((q + u[:, None]) * scale, (q + w[:, None]) * scale, k, r, distance, readable)


def _pairs(q: Tensor, k: Tensor, keep: Tensor | None, window: int | None, ages: Tensor | None) -> tuple[Tensor, Tensor]:
    """The distance of each query from each key, and whether it may read the key."""
    distance = distances(q.shape[2], k.shape[2], ages, q.device)
    readable = distance >= 0
    if window is not None:
        readable = readable & (distance < window)
    if keep is not None:
        readable = readable & keep[:, None]
    return distance, readable


def _plain_weights(
    content: Tensor, position: Tensor, k: Tensor, r: Tensor, distance: Tensor, readable: Tensor
) -> Weights:
    """The weights from scaled queries that have their biases."""
    index = distance.clamp_min(0)[:, None].expand(*content.shape[:2], -1, -1)
    scores = content @ k.mT + (position @ r.mT).gather(3, index)
    return masked_softmax(scores, readable[:, None].expand_as(scores))


def usage(
    q: Queries,
    k: Keys,
    r: Distances,
    u: HeadBias,
    w: HeadBias,
    *,
    columns: int,
    keep: Keep | None = None,
    window: int | None = None,
    ages: Ages | None = None,
) -> Float[Tensor, "batch columns"]:
    """How much the first `columns` keys are read: their weights, summed over the queries, mean over the heads."""
    with torch.no_grad():
        scale = 1 / math.sqrt(q.shape[-1])
        content, position = (q + u[:, None]) * scale, (q + w[:, None]) * scale
        total = q.new_zeros(q.shape[0], columns)
        for piece in _pieces(content, position, k, r, keep, window, ages):
            scores = piece.scores()
            probabilities = (scores - scores.logsumexp(-1, keepdim=True)).exp()
            probabilities = probabilities.masked_fill(scores.amax(-1, keepdim=True) < DEAD, 0.0)
            seen = slice(piece.keys[2].start, max(piece.keys[2].start, min(columns, piece.keys[2].stop)))
            read = probabilities[..., : seen.stop - seen.start].sum((1, 2)) / q.shape[1]
            total[piece.rows[0], seen] += read.to(total.dtype)
        return total


def distances(queries: int, keys: int, ages: Ages | None, device: torch.device) -> Int[Tensor, "rows queries keys"]:
    """From each query back to each key; below 0 in the future."""
    first = keys - queries
    segment = -torch.arange(queries, device=device)[None]
    memory = torch.arange(first, 0, -1, device=device)[None] if ages is None else ages
    offsets = torch.cat([memory, segment.expand(memory.shape[0], -1)], 1)
    return torch.arange(queries, device=device)[None, :, None] + offsets[:, None]


def cost(
    queries: int,
    keys: int,
    heads: int,
    head_dim: int,
    *,
    window: int | None = None,
    distance_count: int | None = None,
    values: bool = True,
) -> Cost:
    """The cost of `attend` on one sequence without masks; without `values`, the cost of `usage`.

    `distance_count` is the number of distances if `ages` are given.
    """
    past, rows = keys - queries, _rows(queries, keys)
    flops = 0
    for begin in range(0, queries, rows):
        end = min(begin + rows, queries)
        low = 0 if window is None or distance_count is not None else max(0, past + begin - window + 1)
        seen = past + end - low
        columns = seen + end - begin - 1 if distance_count is None else distance_count
        flops += 2 * heads * (end - begin) * head_dim * ((1 + values) * seen + columns)
    return Cost(flops, heads * queries * (3 * head_dim + 1))  # both queries with their biases, and the output


def _rows(queries: int, keys: int) -> int:
    """The number of queries in a piece."""
    return min(queries, max(16, min(ROWS, PIECE // keys)))


class _Inputs(NamedTuple):
    """The tensors that all pieces are cut from."""

    content: Tensor  # q + u, scaled
    position: Tensor  # q + w, scaled
    k: Tensor
    table: Tensor  # distances from the largest down to 0, and zeros for the future positions of a piece
    keep: Tensor | None


class _Piece:
    """Some queries of some heads with the keys they can read, and the mapping between distances and keys.

    `columns` are columns of the table, and `open` those of them that may be read. If ages are given, `index` is the
    column of each pair, or -1 if the pair may not be read.
    """

    def __init__(
        self,
        inputs: _Inputs,
        batch: slice,
        heads: slice,
        rows: slice,
        keys: slice,
        columns: slice,
        open: slice,
        index: Tensor | None = None,
    ) -> None:
        self.rows, self.keys, self.columns = (batch, heads, rows), (batch, heads, keys), (heads, columns)
        self.open, self.index = open, index
        self.content, self.k, self.table = inputs.content[self.rows], inputs.k[self.keys], inputs.table[self.columns]
        position = inputs.position[self.rows].transpose(0, 1)
        self.position = position.reshape(len(position), -1, position.shape[-1])  # (heads, batch · queries, head_dim)
        self.keep = None if inputs.keep is None else inputs.keep[batch, keys]

    def by_key(self, flat: Tensor) -> Tensor:
        """(heads, batch · queries, distances) viewed as (batch, heads, queries, keys): the shift of appendix B."""
        batch, heads, queries, keys = *self.content.shape[:3], self.k.shape[2]
        wide = flat.shape[2]
        strides = (queries * wide, batch * queries * wide, wide - 1, 1)
        return flat.as_strided((batch, heads, queries, keys), strides, flat.storage_offset() + queries - 1)

    def bias(self) -> Tensor:
        """(q + w)ᵀ r of each pair, `BLOCKED` where a key may not be read."""
        flat = (self.position @ self.table.mT).to(torch.promote_types(self.k.dtype, torch.float32))
        if self.index is None:
            flat[:, :, : self.open.start] = BLOCKED
            flat[:, :, self.open.stop :] = BLOCKED
            bias = self.by_key(flat)
        else:
            batch, heads, queries = self.content.shape[:3]
            rows = flat.unflatten(1, (batch, queries)).transpose(0, 1)
            index = self.index[:, None].expand(batch, heads, -1, -1)
            bias = rows.gather(3, index.clamp_min(0)).masked_fill_(index < 0, BLOCKED)
        if self.keep is None:
            return bias
        return bias.masked_fill(~self.keep[:, None, None], BLOCKED)

    def scores(self) -> Tensor:
        return (self.content @ self.k.mT).to(torch.promote_types(self.k.dtype, torch.float32)).add_(self.bias())

    def by_distance(self, dscores: Tensor) -> Tensor:
        """The transpose of `bias`: gradients of scores, summed by distance."""
        batch, heads, queries = self.content.shape[:3]
        flat = dscores.new_zeros(heads, batch * queries, self.table.shape[1])
        if self.index is None:
            self.by_key(flat).copy_(dscores)
        else:
            index = self.index[:, None].expand(batch, heads, -1, -1).clamp_min(0)
            flat.unflatten(1, (batch, queries)).transpose(0, 1).scatter_add_(3, index, dscores)
        return flat


def _pieces(
    content: Tensor,
    position: Tensor,
    k: Tensor,
    r: Tensor,
    keep: Tensor | None,
    window: int | None,
    ages: Tensor | None,
) -> Iterator[_Piece]:
    """Pieces of few heads and many queries: the fastest products, and the fewest additions to the keys' gradients."""
    (batch, heads, queries), keys, far = content.shape[:3], k.shape[2], r.shape[1]
    count = _rows(queries, keys)
    group = max(1, min(heads, PIECE // (count * keys)))
    together = max(1, PIECE // (group * count * keys)) if group == heads else 1
    past, inputs = keys - queries, _Inputs(content, position, k, _descending(r, count), keep)
    for sequences, members in product(_cut(batch, together), _cut(heads, group)):
        by_age = None
        if ages is not None:
            by_age = distances(queries, keys, ages if len(ages) == 1 else ages[sequences], k.device)
        for rows in _cut(queries, count):
            end = past + rows.stop
            if by_age is None:
                low = 0 if window is None else max(0, past + rows.start - window + 1)
                furthest = end - 1 - low
                columns = slice(far - 1 - furthest, far - 1 + rows.stop - rows.start)
                beyond = 0 if window is None else max(0, furthest - window + 1)
                open = slice(beyond, furthest + 1)
                yield _Piece(inputs, sequences, members, rows, slice(low, end), columns, open)
                continue
            distance = by_age[:, rows, :end]
            readable = distance >= 0 if window is None else (distance >= 0) & (distance < window)
            index = (far - 1 - distance).masked_fill_(~readable, -1)
            yield _Piece(inputs, sequences, members, rows, slice(0, end), slice(0, far), slice(0, far), index)


def _cut(length: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, length)) for begin in range(0, length, size)]


def _descending(r: Tensor, count: int) -> Tensor:
    """Distances from the largest to 0, and zeros for the `count` - 1 future positions of a piece."""
    return torch.cat([r.flip(1), r.new_zeros(r.shape[0], count - 1, r.shape[2])], 1)


class _Dropped:
    """Dropout masks times 1 / (1 - rate), drawn from one seed so that forward and backward agree."""

    def __init__(self, rate: float, seed: int, like: Tensor) -> None:
        self.rate, self.draws = rate, DropoutMasks(rate, seed) if on_cpu(like) else None
        self.generator = None if like.is_meta else torch.Generator(like.device).manual_seed(seed)

    def __call__(self, like: Tensor) -> Tensor:
        if self.draws is not None:
            return self.draws.kept(like.shape, like.dtype).mul_(self.draws.scale)
        drawn = torch.rand(like.shape, generator=self.generator, dtype=like.dtype, device=like.device)
        return drawn.ge_(self.rate).mul_(1 / (1 - self.rate))


def _recompute(ctx: Any, saved: Sequence[Any]) -> tuple[Tensor, Sequence[Tensor | None]]:
    if ctx.dropout[0]:
        refuse_second("relative attention with dropout on its weights", "set that dropout to 0")
    content, position, k, v, r, _, _, *rest = saved
    keep = rest.pop(0) if ctx.given[0] else None
    ages = rest.pop(0) if ctx.given[1] else None
    weights = _plain_weights(content, position, k, r, *_pairs(content, k, keep, ctx.window, ages))
    return weights @ v, (content, position, k, v, r, None, None, None, None)


class _Relative(torch.autograd.Function):
    """Stores only the inputs, the output and its log-sum-exp; the backward pass computes the weights again."""

    @staticmethod
    def forward(
        ctx: Any,
        content: Tensor,
        position: Tensor,
        k: Tensor,
        v: Tensor,
        r: Tensor,
        keep: Tensor | None,
        window: int | None,
        ages: Tensor | None,
        rate: float,
    ) -> Tensor:
        seed = int(torch.randint(1 << 62, ())) if rate else 0  # from the user's generator
        out = v.new_empty(*content.shape[:3], v.shape[-1])
        lse = content.new_empty(content.shape[:3], dtype=torch.promote_types(content.dtype, torch.float32))
        dropped = _Dropped(rate, seed, v) if rate else None
        for piece in _pieces(content, position, k, r, keep, window, ages):
            rows, values = piece.rows, v[piece.keys]
            if dropped is None:
                out[rows], lse[rows] = flash.forward(piece.content, piece.k, values, 1.0, mask=piece.bias())
                continue
            scores = piece.scores()
            lse[rows] = scores.logsumexp(-1)
            weights = scores.sub_(lse[rows][..., None]).exp_()
            out[rows] = (weights * dropped(weights)).to(v.dtype) @ values
        if keep is not None:
            out.masked_fill_((lse < DEAD)[..., None], 0.0)
        ctx.save_for_backward(content, position, k, v, r, out, lse, *(x for x in (keep, ages) if x is not None))
        ctx.given, ctx.window, ctx.dropout = (keep is not None, ages is not None), window, (rate, seed)
        return out

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        content, position, k, v, r, out, lse, *rest = ctx.saved_tensors
        keep = rest.pop(0) if ctx.given[0] else None
        ages = rest.pop(0) if ctx.given[1] else None
        g = gradients[0].masked_fill((lse < DEAD)[..., None], 0.0) if keep is not None else gradients[0]
        rate, seed = ctx.dropout
        dropped = _Dropped(rate, seed, v) if rate else None
        return _backward(g, content, position, k, v, r, out, lse, keep, ctx.window, ages, dropped)


def _backward(
    g: Tensor,
    content: Tensor,
    position: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    out: Tensor,
    lse: Tensor,
    keep: Tensor | None,
    window: int | None,
    ages: Tensor | None,
    dropped: _Dropped | None,
) -> tuple[Tensor | None, ...]:
    dcontent, dposition = torch.empty_like(content), torch.empty_like(position)
    # Transposed: (head_dim, queries) × (queries, keys) is a third faster than its transpose.
    dk, dv, dtable = k.new_zeros(k.mT.shape), v.new_zeros(v.mT.shape), None
    inner = (g * out).sum(-1, keepdim=True)
    lse = lse.masked_fill(lse < DEAD, 0.0)[..., None] * LOG2_E  # if a row reads nothing, all its weights become 0
    for piece in _pieces(content * LOG2_E, position * LOG2_E, k, r, keep, window, ages):
        rows, keys = piece.rows, piece.keys
        transposed = (*keys[:2], slice(None), keys[2])
        g_rows = g[rows]
        weights = piece.scores().sub_(lse[rows]).exp2_().to(v.dtype)
        dscores = g_rows @ v[keys].mT
        if dropped is None:
            dv[transposed] += g_rows.mT @ weights
        else:
            kept = dropped(weights)
            dv[transposed] += g_rows.mT @ (weights * kept)
            dscores.mul_(kept)
        dscores.sub_(inner[rows]).mul_(weights)
        dk[transposed] += piece.content.mT @ dscores
        dcontent[rows] = dscores @ piece.k
        flat = piece.by_distance(dscores)
        dposition[rows] = (flat @ piece.table).unflatten(1, (dscores.shape[0], dscores.shape[2])).transpose(0, 1)
        if dtable is None:  # the first piece has the most queries, and so the most future positions
            dtable = r.new_zeros(r.shape[0], r.shape[2], r.shape[1] + dscores.shape[2] - 1)
        dtable[piece.columns[0], :, piece.columns[1]] += piece.position.mT @ flat
    assert dtable is not None
    dr = dtable[:, :, : r.shape[1]].flip(2)
    return dcontent, dposition, dk.mul_(LN_2).mT, dv.mT, dr.mul_(LN_2).mT, None, None, None, None


__all__ = ["Ages", "Distances", "attend", "cost", "distances", "usage", "weights"]
