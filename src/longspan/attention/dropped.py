"""Attention with dropout on its weights, in pieces that stay in cache: for the fused kernel, which has none.

While a `Dropout` is in force, `flash.forward` and `flash.backward` come here, so every layout drops without knowing.
The weights that are dropped are not kept: forward and backward draw the same numbers from the same seed, which holds as
long as a layout takes its pieces in the same order both times. Each draw is checked for that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

BLOCKED = -1e30  # what a score is where a key may not be read; see `flash`
PIECE = 1 << 17  # scores at a time: each is passed over several times, so they should stay near
STEPS = 1 << 16  # a weight is dropped if one of this many equally likely numbers lies below the rate


class Dropout:
    """One dropout, drawn in forward and drawn again in backward."""

    def __init__(self, rate: float) -> None:
        self.below = min(STEPS - 1, round(rate * STEPS))
        self.scale = STEPS / (STEPS - self.below)
        self.seed = int(torch.randint(1 << 62, ()))  # from the user's generator
        self.drawn: list[torch.Size] = []

    @contextmanager
    def force(self) -> Iterator[None]:
        """In force from the seed on; a second time, the same draws are expected."""
        self.generator = torch.Generator().manual_seed(self.seed)
        self.again = iter(self.drawn) if self.drawn else None
        token = _force.set(self)
        try:
            yield
        finally:
            _force.reset(token)

    def killed(self, shape: torch.Size) -> Tensor:
        """Which weights of a piece are dropped; those that live are to be multiplied by `scale`."""
        if self.again is None:
            self.drawn.append(shape)
        elif next(self.again, None) != shape:
            raise AssertionError("a layout must take its pieces in the same order forward and backward")
        words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64)
        words.random_(-(1 << 63), None, generator=self.generator)  # four numbers of 16 bits in each
        return words.view(torch.int16)[: shape.numel()].view(shape) < self.below - STEPS // 2


_force: ContextVar[Dropout | None] = ContextVar("dropout", default=None)


def in_force() -> Dropout | None:
    return _force.get()


def forward(
    dropout: Dropout, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; the log-sum-exp is that of all weights, dropped or not."""
    wide = torch.promote_types(q.dtype, torch.float32)
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=wide)
    for own, rows in _pieces(q, k):
        weights = _scores(q[own, :, rows], k[own], scale, causal, _part(mask, own, rows), rows)
        most = weights.amax(-1, keepdim=True)
        total = weights.sub_(most).exp_().sum(-1, keepdim=True)
        lse[own, :, rows] = (most + total.log())[..., 0]
        weights.masked_fill_(dropout.killed(weights.shape), 0.0)
        torch.mul(weights.to(v.dtype) @ v[own], (dropout.scale / total).to(v.dtype), out=out[own, :, rows])
    return out, lse


def backward(
    dropout: Dropout,
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
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
    for own, rows in _pieces(q, k):
        weights = _scores(q[own, :, rows], k[own], scale, causal, _part(mask, own, rows), rows)
        weights.sub_(lse[own, :, rows, None]).exp_()
        killed = dropout.killed(weights.shape)
        inner = (g[own, :, rows] * out[own, :, rows]).sum(-1, keepdim=True)
        scaled = g[own, :, rows] * dropout.scale
        towards = (scaled @ v[own].mT).to(weights.dtype).masked_fill_(killed, 0.0).sub_(inner).mul_(weights).to(q.dtype)
        found_k, found_v = towards.mT @ q[own, :, rows], weights.masked_fill_(killed, 0.0).to(g.dtype).mT @ scaled
        dq[own, :, rows] = towards @ k[own]
        if rows.start == 0:
            dk[own], dv[own] = found_k, found_v
        else:
            dk[own] += found_k
            dv[own] += found_v
    return dq.mul_(scale), dk.mul_(scale), dv


def _pieces(q: Tensor, k: Tensor) -> Iterator[tuple[slice, slice]]:
    """(of the batch, of the queries)"""
    batch, heads, queries = q.shape[:3]
    rows = min(queries, max(16, PIECE // (heads * k.shape[2])))
    together = max(1, PIECE // (heads * rows * k.shape[2]))
    for first in range(0, batch, together):
        for begin in range(0, queries, rows):
            yield slice(first, first + together), slice(begin, min(begin + rows, queries))


def _part(mask: Tensor | None, own: slice, rows: slice) -> Tensor | None:
    """The part of a mask that broadcasts over batch, heads and queries."""
    if mask is None:
        return None
    if mask.dim() == 4 and mask.shape[0] > 1:
        mask = mask[own]
    return mask[..., rows, :] if mask.dim() > 1 and mask.shape[-2] > 1 else mask


def _scores(q: Tensor, k: Tensor, scale: float, causal: bool, mask: Tensor | None, rows: slice) -> Tensor:
    """The scores of some rows, `BLOCKED` where nothing may be read."""
    scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)).mul_(scale)
    if mask is not None:
        scores.add_(mask)
    if causal:
        later = torch.arange(k.shape[2]) > torch.arange(rows.start, rows.stop)[:, None]
        scores.masked_fill_(later, BLOCKED)
    return scores
