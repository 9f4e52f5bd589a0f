"""Softmax attention with dropout on the weights, in pieces that stay in cache; torch's fused CPU kernel has no dropout.

While an `AttentionDropout` is active, `flash.forward` and `flash.backward` delegate to this file, so layouts need no
code for dropout. The masks are not stored: forward and backward draw them from the same seed. A layout must therefore
process its pieces in the same order both times, and each draw checks that.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import product

import torch
from torch import Tensor

from longspan.attention.parts.dropout_masks import DropoutMasks

# Powers of 2, not of e: torch's exp is five times slower where it underflows, as it does for hidden keys.
LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453
BLOCKED = -1e30  # the score of a key that may not be read; see `flash`
PIECE = 1 << 21  # scores at a time: several passes go over them, so they should stay in cache; fewer waste calls


class AttentionDropout(DropoutMasks):
    """The dropout of one attention call: masks drawn in forward, and the same again in backward."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.drawn: list[torch.Size] = []

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Apply this dropout inside the block, from its seed on. The second time, the same draws are expected."""
        self.expected = iter(self.drawn) if self.drawn else None
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)
            self.rewind()

    def kept(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        if self.expected is None:
            self.drawn.append(shape)
        elif next(self.expected, None) != shape:
            raise AssertionError("a layout must process its pieces in the same order forward and backward")
        return super().kept(shape, dtype)


_active: ContextVar[AttentionDropout | None] = ContextVar("dropout", default=None)


def active() -> AttentionDropout | None:
    """The dropout of the attention call that is running, if it has one."""
    return _active.get()


def forward(
    dropout: AttentionDropout, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; the log-sum-exp counts all keys, dropped or not."""
    out, lse = _empty(q), _empty(q[..., :1])
    for begin, (q_part, out_part, lse_part), (k_part, v_part), mask_part in _pieces((q, out, lse), (k, v), mask):
        weights = _scores(dropout, q_part, k_part, scale, begin if causal else None, mask_part)
        maximum = weights.amax(-1, keepdim=True)
        total = weights.sub_(maximum).exp2_().sum(-1, keepdim=True)
        torch.mul(maximum.add_(total.log2()), LN_2, out=lse_part)
        weights.mul_(dropout.kept(weights.shape, weights.dtype))
        mixed = torch.bmm(weights, v_part, out=dropout.buffer("mixed", q_part.shape, weights.dtype))
        torch.mul(mixed, dropout.scale / total, out=out_part)
    return out.to(q.dtype), lse[..., 0]


def backward(
    dropout: AttentionDropout,
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; `out` and `lse` may be those of a softmax over more keys than these."""
    dq, dk, dv = (_empty(x) for x in (q, k, v))
    for begin, of_rows, of_keys, mask_part in _pieces((q, g, out, lse[..., None], dq), (k, v, dk, dv), mask):
        q_part, g_part, out_part, lse_part, dq_part = of_rows
        k_part, v_part, dk_part, dv_part = of_keys
        weights = _scores(dropout, q_part, k_part, scale, begin if causal else None, mask_part)
        weights.sub_(lse_part, alpha=LOG2_E).exp2_()
        kept = dropout.kept(weights.shape, weights.dtype)
        inner, scaled = (g_part * out_part).sum(-1, keepdim=True), g_part * dropout.scale
        dscores = torch.bmm(scaled, v_part.mT, out=dropout.buffer("dscores", weights.shape, weights.dtype))
        dscores.mul_(kept).sub_(inner).mul_(weights)
        weights.mul_(kept)
        dq_part.copy_(torch.bmm(dscores, k_part, out=dropout.buffer("mixed", q_part.shape, weights.dtype)))
        accumulate = int(begin > 0)  # the first rows write, the others add
        dk_part.baddbmm_(dscores.mT, q_part, beta=accumulate)
        dv_part.baddbmm_(weights.mT, scaled, beta=accumulate)
    return dq.mul_(scale).to(q.dtype), dk.mul_(scale).to(k.dtype), dv.to(v.dtype)


# `bmm` takes (batch, rows, width), and merging two dimensions would copy overlapping keys. So the calls go lane by
# lane: a lane is one sequence with all its heads, or one head of all sequences, whichever is longer.

_Piece = tuple[int, list[Tensor], list[Tensor], Tensor | None]  # first row, row tensors, key tensors, mask


def _lane_dim(x: Tensor) -> int:
    return 0 if x.shape[0] <= x.shape[1] else 1


def _empty(like: Tensor) -> Tensor:
    """An empty tensor of that shape, at least float32, with each lane contiguous."""
    wide = torch.promote_types(like.dtype, torch.float32)
    if _lane_dim(like) == 0:
        return torch.empty(like.shape, dtype=wide)
    return torch.empty(like.transpose(0, 1).shape, dtype=wide).transpose(0, 1)


def _pieces(of_rows: Sequence[Tensor], of_keys: Sequence[Tensor], mask: Tensor | None) -> Iterator[_Piece]:
    """The pieces, in an order that depends on the shapes alone; at least float32, and views where the input is."""
    q, k = of_rows[0], of_keys[0]
    wide, dim = torch.promote_types(q.dtype, torch.float32), _lane_dim(q)
    queries, keys = q.shape[2], k.shape[2]
    rows = _even(queries, max(16, PIECE // keys))
    group = _even(q.shape[1 - dim], max(1, PIECE // (rows * keys)))
    if mask is not None:
        mask = mask.expand(*q.shape[:2], *torch.atleast_2d(mask).shape[-2:])
    for lane in range(q.shape[dim]):
        for first, begin in product(range(0, q.shape[1 - dim], group), range(0, queries, rows)):
            members, at = slice(first, first + group), slice(begin, begin + rows)
            row_parts = [x.select(dim, lane)[members, at].to(wide) for x in of_rows]
            key_parts = [x.select(dim, lane)[members].to(wide) for x in of_keys]
            mask_part = None if mask is None else mask.select(dim, lane)[members]
            if mask_part is not None and mask_part.shape[1] > 1:
                mask_part = mask_part[:, at]
            yield begin, row_parts, key_parts, mask_part


def _even(length: int, most: int) -> int:
    """The length of pieces of at most `most`, as few and as even as possible."""
    return -(-length // -(-length // most))


def _scores(
    dropout: AttentionDropout, q: Tensor, k: Tensor, scale: float, triangle: int | None, mask: Tensor | None
) -> Tensor:
    """Scores of some rows for base 2, hidden keys at `BLOCKED`; `triangle` is the first row's index if causal."""
    scores = dropout.buffer("weights", torch.Size([len(q), q.shape[1], k.shape[1]]), q.dtype)
    torch.baddbmm(scores, q, k.mT, beta=0, alpha=scale * LOG2_E, out=scores)
    if mask is not None:
        scores.add_(mask, alpha=LOG2_E)
    if triangle is not None:
        scores.add_(torch.full(scores.shape[1:], BLOCKED, dtype=q.dtype).triu_(triangle + 1))
    return scores
